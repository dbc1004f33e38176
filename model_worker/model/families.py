"""The families of decoders that the native forward pass runs: what each of them adds to Llama.

The numbers come from config.json. What is said here is what a config.json does not say, or what older ones leave out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from model_worker.model.config import read_size

Windows = tuple[int | None, ...]


class ExpertNames(NamedTuple):
    """Where a mixture of experts lies in a layer, and what the width of one is called in config.json."""

    block: str
    gate: str
    up: str
    down: str
    width: str
    normalised: bool
    """Whether a token's weights add up to 1, when config.json's `norm_topk_prob` does not say."""


@dataclass(frozen=True, slots=True)
class Family:
    """What tells one family of decoders from another."""

    fused: bool = False
    """The checkpoint holds q, k and v in one tensor, gate and up in another."""
    qkv_bias: bool | None = None
    """Whether q, k and v have biases and the output projection has none; None: `attention_bias` speaks for all four."""
    qk_norm: bool = False
    """Every head of q and k is normed before it is rotated."""
    sandwich_norms: bool = False
    """Attention and feed-forward have a norm after them as well."""
    offset_norms: bool = False
    """Norms multiply with 1 + weight."""
    scaled_embeddings: bool = False
    """Embeddings are multiplied by sqrt(hidden size)."""
    soft_caps: bool = False
    """Scores and logits may be capped: `attn_logit_softcapping`, `final_logit_softcapping`."""
    activation: str = "hidden_act"
    """config.json's name for the activation."""
    tied_embeddings: bool = False
    """When config.json does not say."""
    windows: Callable[[Mapping[str, Any], int], Windows] = lambda raw, layers: (None,) * layers
    """(config.json, layers) -> the sliding window of each layer"""
    local_rope: bool = False
    """Layers with a window have a rotary embedding of their own: `rope_local_base_freq`, never scaled."""
    experts: ExpertNames | None = None


def _everywhere(raw: Mapping[str, Any], layers: int) -> Windows:
    return (_window(raw),) * layers


def _if_used(raw: Mapping[str, Any], layers: int) -> Windows:
    """Qwen: `use_sliding_window`, from layer `max_window_layers` on."""
    if not raw.get("use_sliding_window"):
        return (None,) * layers
    first = raw.get("max_window_layers", 28)
    return tuple(_window(raw) if index >= first else None for index in range(layers))


def _if_used_everywhere(raw: Mapping[str, Any], layers: int) -> Windows:
    return _everywhere(raw, layers) if raw.get("use_sliding_window") else (None,) * layers


def _alternating(period: int) -> Callable[[Mapping[str, Any], int], Windows]:
    """The last layer of every `period` sees everything."""

    def windows(raw: Mapping[str, Any], layers: int) -> Windows:
        every = raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern") or period
        return tuple(_window(raw) if (index + 1) % every else None for index in range(layers))

    return windows


def _window(raw: Mapping[str, Any]) -> int | None:
    return None if raw.get("sliding_window") is None else read_size(raw, "sliding_window")


def layer_windows(family: Family, raw: Mapping[str, Any], layers: int) -> Windows:
    """Each layer's window: by `layer_types` where config.json has them, else by the family's habit."""
    kinds = raw.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        return family.windows(raw, layers)
    return tuple(_window(raw) if kind == "sliding_attention" else None for kind in kinds)


_MIXTRAL = ExpertNames("block_sparse_moe", "w1", "w3", "w2", "intermediate_size", normalised=True)
_QWEN = ExpertNames("mlp", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size", normalised=False)
_GEMMA = Family(
    sandwich_norms=True,
    offset_norms=True,
    scaled_embeddings=True,
    soft_caps=True,
    activation="hidden_activation",
    tied_embeddings=True,
    windows=_alternating(2),
)

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(windows=_everywhere),
    "Qwen2ForCausalLM": Family(qkv_bias=True, windows=_if_used),
    "Qwen3ForCausalLM": Family(qk_norm=True, windows=_if_used),
    "Qwen3MoeForCausalLM": Family(qk_norm=True, windows=_if_used_everywhere, experts=_QWEN),
    "MixtralForCausalLM": Family(windows=_everywhere, experts=_MIXTRAL),
    "Phi3ForCausalLM": Family(fused=True, windows=_everywhere),
    "Gemma2ForCausalLM": _GEMMA,
    "Gemma3ForCausalLM": replace(_GEMMA, qk_norm=True, windows=_alternating(6), local_rope=True),
}
