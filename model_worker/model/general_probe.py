"""Whether a model of transformers can be served from the pool, asked of the loaded model itself.

The pool serves causal attention, with a window, a cap or sinks. What a module does beyond that would be lost without a
word, and so would anything that lets tokens see each other outside of attention (a convolution, a recurrent state): a
batch is one row of tokens of many sequences. Three passes over a few tokens find out:

    recorded     attention and masks are recorded, and computed plainly
    by itself    the model's own attention, positions left to the model: the logits must be those of `recorded`
    alone        every token attends to itself only: the logits of the last must not depend on the others
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from model_worker.model.config import ModelConfig
from model_worker.model.errors import UnsupportedModelError
from model_worker.model.general_masks import MaskError, window_of
from model_worker.model.refusals import SUPPORTED

_RECORDED, _ALONE = "octavo_recorded", "octavo_alone"
_SERVED = {"scaling", "sliding_window", "softcap", "s_aux"}
_HARMLESS = {
    *("dropout", "is_causal", "position_ids", "cache_position", "position_embeddings", "layer_idx"),
    *("use_cache", "cache", "past_key_values", "output_attentions", "output_hidden_states", "logits_to_keep"),
    *("return_dict", "output_router_logits", "deterministic", "target_dtype"),
}
_TOKENS = 5


class _Problem(Exception):
    """Why the model cannot be served; completes a sentence about it."""


class _Record:
    """What one pass showed."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.masks: list[int | MaskError | None] = []
        self.windows: list[int | None] = []
        """Of each call."""


_record: ContextVar[_Record] = ContextVar("octavo_record")


def layer_windows(model: PreTrainedModel, config: ModelConfig) -> tuple[int | None, ...]:
    """The window of each layer. Raises UnsupportedModelError when the model cannot be served, and says why."""
    try:
        return _probed(model, config)
    except _Problem as problem:
        raise refusal(config.architecture, str(problem)) from problem
    except Exception as error:  # modules raise what they please when they are given what they do not expect
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise refusal(config.architecture, f"does not run on plain token ids and positions: {line}") from error


def sets_attention(model: PreTrainedModel, name: str) -> bool:
    """Whether the model took the attention function; one without the interface only warns and keeps its own."""
    model.set_attn_implementation(name)
    return bool(model.config._attn_implementation == name)


def refusal(architecture: str, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{architecture} {reason}; {SUPPORTED}")


@torch.inference_mode()
def _probed(model: PreTrainedModel, config: ModelConfig) -> tuple[int | None, ...]:
    ids = torch.arange(3, 3 + _TOKENS, device=model.device)[None] % config.vocab_size
    positions = torch.arange(_TOKENS, device=model.device)[None]
    with _attending(model, _RECORDED, config) as record:
        recorded = _logits(model, ids, positions)
    if len(record.windows) != config.num_layers:
        raise _Problem(f"calls its attention {len(record.windows)} times in {config.num_layers} layers")

    model.set_attn_implementation("eager")
    by_itself = model(input_ids=ids, use_cache=False).logits[0].float()
    # Where operations have another order, half precision is off by 0.01 of the spread; a wrong model by all of it.
    exact = model.dtype == torch.float32
    if _differ(recorded, by_itself, 1e-3 if exact else 0.1):
        raise _Problem("computes other logits when its attention and its positions are set from outside")

    with _attending(model, _ALONE, config):
        alone = _logits(model, ids, positions)[-1]
        changed = torch.cat((ids[:, :-1].flip(-1) + 1, ids[:, -1:]), -1) % config.vocab_size
        beside_others = _logits(model, changed, positions)[-1]
    # Here only experts see their tokens in another order.
    if _differ(beside_others, alone, 1e-3 if exact else 0.02):
        raise _Problem("lets tokens see each other outside of attention (by a convolution or a recurrent state)")
    return tuple(record.windows)


def _differ(actual: torch.Tensor, expected: torch.Tensor, allowed: float) -> bool:
    """Whether the root mean square of the difference exceeds this share of the spread."""
    return float((actual - expected).square().mean().sqrt()) > allowed * float(expected.std())


def _logits(model: PreTrainedModel, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """float32 [tokens, vocab]"""
    # A mask of ones: without it the positions are searched for packed sequences.
    output = model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False)
    logits: torch.Tensor = output.logits[0].float()
    return logits


@contextmanager
def _attending(model: PreTrainedModel, name: str, config: ModelConfig) -> Iterator[_Record]:
    """The model calls one of the functions below, which see the record."""
    if not sets_attention(model, name):
        raise _Problem("does not call its attention through the attention interface")
    record = _Record(config)
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def _recorded(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    record = _record.get()
    record.windows.append(_checked_window(record, attention_mask, arguments.get("sliding_window")))
    if not query.shape[3] == key.shape[3] == value.shape[3]:
        sizes = f"{query.shape[3]}, {key.shape[3]} and {value.shape[3]}"
        raise _Problem(f"has queries, keys and values of {sizes} dimensions, not of one size")
    found, expected = (key.shape[1], key.shape[3]), (record.config.num_kv_heads, record.config.head_dim)
    if found != expected:
        raise _Problem(
            f"has KV heads and head dim {found} in layer {len(record.windows)}, and not everywhere {expected}"
        )
    if query.shape[2] != key.shape[2]:
        raise _Problem("attends to tokens other than those of its input")
    if arguments.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise _Problem("attends in both directions")
    unknown = [name for name, given in arguments.items() if given is not None and name not in _SERVED | _HARMLESS]
    if unknown:
        raise _Problem(f"has attention that depends on {', '.join(sorted(unknown))}")
    return _plain(query, key, value, arguments)


def _plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, arguments: dict[str, Any]
) -> tuple[torch.Tensor, None]:
    """Causal attention over a few tokens, with all that the pool serves; no window is as short."""
    group = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scale = arguments.get("scaling")
    scores = (query.float() @ keys.float().mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if (cap := arguments.get("softcap")) is not None:
        scores = torch.tanh(scores / cap) * cap
    above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(above, -torch.inf)
    if (sinks := arguments.get("s_aux")) is not None:
        sink = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights @ values.float()).to(query.dtype).transpose(1, 2).contiguous(), None


def _alone(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2).contiguous(), None


def _checked_window(record: _Record, mask: torch.Tensor | None, told: int | None) -> int | None:
    """The window of one call, from its arguments or from its mask, which must not contradict each other."""
    if mask is None:
        return told
    number = int(mask.flatten()[0])
    if not bool((mask == number).all()) or not 0 <= number < len(record.masks):
        raise _Problem("makes its attention mask by itself")
    said = record.masks[number]
    if isinstance(said, MaskError):
        raise _Problem(str(said))
    if told is not None and told != said:
        raise _Problem(f"has a window of {said} tokens in its mask and of {told} in its call")
    return said


def _numbered_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Callable[..., Any], **_: Any
) -> torch.Tensor:
    """Stands where a mask is made: notes what it says, and returns its number in the shape of a mask."""
    record = _record.get()
    try:
        record.masks.append(window_of(mask_function))
    except MaskError as error:
        record.masks.append(error)
    return torch.full((batch_size, 1, q_length, kv_length), float(len(record.masks) - 1))


AttentionInterface.register(_RECORDED, _recorded)
AttentionInterface.register(_ALONE, _alone)
AttentionMaskInterface.register(_RECORDED, _numbered_mask)
