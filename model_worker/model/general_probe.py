"""Whether transformers' modules compute causal attention that the pool can serve, asked of the loaded model itself.

A module may name a window, a cap or sinks in its call, and those are served. What it says only in its mask, or by
arguments that nobody here reads, would be lost without a word: so one pass with a recording attention function looks
at all of it.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from model_worker.model.config import ModelConfig
from model_worker.model.errors import UnsupportedModelError

NAME = "octavo_probe"
_SERVED = {"scaling", "sliding_window", "softcap", "s_aux"}
_HARMLESS = {
    *("dropout", "is_causal", "position_ids", "cache_position", "position_embeddings", "layer_idx"),
    *("use_cache", "cache", "past_key_values", "output_attentions", "output_hidden_states", "logits_to_keep"),
    *("return_dict", "output_router_logits", "attention_dropout", "deterministic", "target_dtype"),
}
_TOKENS = 5


@dataclass(slots=True)
class _Call:
    shape: tuple[int, int]
    """KV heads and head dim."""
    window: int | None


@dataclass(slots=True)
class _Seen:
    calls: list[_Call] = field(default_factory=list)
    windows: set[int | None] = field(default_factory=set)
    """What masks were asked for."""
    problems: list[str] = field(default_factory=list)


_seen: ContextVar[_Seen] = ContextVar("octavo_probe_seen")


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    seen = _seen.get()
    window = arguments.get("sliding_window")
    seen.calls.append(_Call((key.shape[1], key.shape[3]), window))
    if not query.shape[3] == key.shape[3] == value.shape[3]:
        sizes = f"{query.shape[3]}, {key.shape[3]} and {value.shape[3]}"
        seen.problems.append(f"its queries, keys and values have {sizes} dimensions (as in MLA), not one size")
    if query.shape[2] != key.shape[2]:
        seen.problems.append("it attends to tokens other than those of its input")
    if arguments.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        seen.problems.append("it attends in both directions")
    if attention_mask is not None:
        seen.problems.append("it makes its attention mask by itself")
    unknown = [name for name in arguments if arguments[name] is not None and name not in _SERVED | _HARMLESS]
    if unknown:
        seen.problems.append(f"its attention depends on {', '.join(sorted(unknown))}")
    output: tuple[torch.Tensor, None] = sdpa_attention_forward(
        module, query, key, value, None, scaling=arguments.get("scaling"), is_causal=True
    )
    return output


def _mask(mask_function: Callable[..., Any], q_length: int, **_: Any) -> None:
    """Stands where a mask is made: finds out what it would have said."""
    seen = _seen.get()
    try:
        seen.windows.add(_window_of(mask_function))
    except ValueError as error:
        seen.problems.append(str(error))


def _window_of(mask_function: Callable[..., Any], last: int = 2**17) -> int | None:
    """The sliding window of a causal mask, read off the mask itself; None when the query sees all before it.

    Raises ValueError for any other mask. Two queries are looked at: with chunks, how far one sees depends on where it
    stands. The second is not at a power of two, as chunk sizes are.
    """
    reach = set()
    for query in (last - 1, last - 1 - 997):
        keys = torch.arange(query + 2)
        # A mask that looks at one token's position, as packed sequences do, has no tokens this far.
        zero = torch.zeros((), dtype=torch.int64)
        sees = torch.as_tensor(mask_function(zero, zero, torch.tensor(query), keys)).expand(query + 2)
        first = int(sees.int().argmax())
        if not bool(sees[first : query + 1].all()) or bool(sees[query + 1]) or bool(sees[:first].any()):
            raise ValueError("its mask is neither causal nor a sliding window")
        reach.add(None if first == 0 else query + 1 - first)
    if len(reach) != 1:
        raise ValueError("it attends in chunks")
    return reach.pop()


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


def sets_attention(model: PreTrainedModel, name: str) -> bool:
    """Whether the model took the attention function; one without the interface only warns and keeps its own."""
    model.set_attn_implementation(name)
    return bool(model.config._attn_implementation == name)


@torch.inference_mode()
def check_attention(model: PreTrainedModel, config: ModelConfig) -> None:
    """Raises UnsupportedModelError when the model's attention is not what the pool serves, and says why."""
    seen = _Seen()
    token = _seen.set(seen)
    try:
        if not sets_attention(model, NAME):
            raise refusal(config.architecture, "it does not call its attention through the attention interface")
        # A mask of ones, or the positions would be searched for packed sequences.
        ids = torch.arange(_TOKENS, device=model.device)[None] % config.vocab_size
        model(
            input_ids=ids,
            position_ids=torch.arange(_TOKENS, device=model.device)[None],
            attention_mask=torch.ones_like(ids),
            use_cache=False,
        )
    finally:
        _seen.reset(token)
    if len(seen.calls) != config.num_layers:
        seen.problems.append(f"{len(seen.calls)} of its {config.num_layers} layers have attention with keys and values")
    expected = (config.num_kv_heads, config.head_dim)
    if odd := {call.shape for call in seen.calls if call.shape != expected}:
        seen.problems.append(f"its layers differ in KV heads or head dim: {sorted({*odd, expected})}")
    told = {call.window for call in seen.calls}
    if hidden := {window for window in seen.windows if window is not None} - told:
        seen.problems.append(f"a sliding window of {hidden.pop()} is in its mask only, not in the call")
    if seen.problems:
        raise refusal(config.architecture, seen.problems[0])


def accepts(model_class: type[PreTrainedModel], name: str) -> bool:
    """Whether the class's forward takes an argument of this name."""
    return name in inspect.signature(model_class.forward).parameters


def refusal(architecture: str, reason: str) -> UnsupportedModelError:
    from model_worker.model.refusals import SUPPORTED

    return UnsupportedModelError(f"{architecture} is not supported: {reason}; {SUPPORTED}")
