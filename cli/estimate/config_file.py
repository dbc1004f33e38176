"""A config.json read as a shape. A field that is missing is refused by its name, never guessed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.estimate.built_in import MLA_UNSERVED
from cli.estimate.shape import Latent, ModelShape
from cli.failures import CliError

# What models call the same size in their config.json, the common name first, and the flag that says it here.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HIDDEN = ("hidden_size", "n_embd", "d_model")
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")

MAX_LAYERS = 65_536

# Kinds whose memory this arithmetic does not describe, by what gives them away.
_OTHERS = {
    "is_encoder_decoder": "is an encoder-decoder: its cross attention keeps keys and values too",
    "attn_layer_period": "has layers without attention, whose state is no keys and values",
    "mamba_d_state": "keeps a recurrent state beside keys and values",
    "num_kv_shared_layers": "has layers that keep no keys and values of their own",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Given:
    """Sizes told by flags; they win over a config.json, and complete it. None: not told."""

    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None

    @property
    def any(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__slots__)


def read_config_file(path: Path, name: str, given: Given) -> ModelShape:
    """The shape a config.json describes. Raises CliError, which names the file and the field."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, ValueError) as error:
        raise CliError(f"cannot read {path}: {error}") from error
    if not isinstance(raw, dict):
        raise CliError(f"{path} holds no JSON object")
    return shape_of(raw, name, given, str(path))


def shape_of(raw: Mapping[str, Any], name: str, given: Given, place: str) -> ModelShape:
    """The shape that the contents of a config.json describe.

    Args:
        place: what errors call the file.
    """
    unserved, inner = None, raw.get("text_config")
    if isinstance(inner, dict):
        raw, place = inner, f"{place}: text_config"
        unserved = "the worker serves text models only; this is the text half of one that takes more"
    for field, reason in _OTHERS.items():
        if raw.get(field):
            raise CliError(f"{place}: {field}: the model {reason}; that is not estimated here")
    layers = given.layers or _size(raw, LAYERS, place, "--layers")
    if layers > MAX_LAYERS:
        raise CliError(f"{place}: num_hidden_layers must be at most {MAX_LAYERS}, found {layers}")
    if raw.get("quantization_config"):
        unserved = "the worker reads no quantised checkpoints; weights in fewer bits leave keys and values as they are"
    context = _optional(raw, CONTEXT, place)
    windows = _windows(raw, layers, context, place)
    if given.kv_lora_rank or raw.get("kv_lora_rank"):
        return _latent(raw, name, given, place, (layers, context, windows))
    heads = given.heads or _size(raw, HEADS, place, "--heads")
    kv_heads = given.kv_heads or _kv_heads(raw, heads, place)
    head_dim = given.head_dim or _head_dim(raw, heads, place)
    return ModelShape(name, layers, heads, kv_heads, head_dim, windows, context, unserved=unserved)


def shape_of_numbers(given: Given) -> ModelShape:
    """The shape that flags alone describe. Raises CliError, which names the flag that is missing."""
    if given.layers is None:
        raise CliError("plain numbers need --layers (or name a MODEL)")
    if given.kv_lora_rank is not None:
        if given.qk_rope_head_dim is None:
            raise CliError("--kv-lora-rank needs --qk-rope-head-dim: MLA keeps a rotated key beside the latent")
        latent, heads = Latent(given.kv_lora_rank, given.qk_rope_head_dim), given.heads or 1
        return ModelShape(
            "a model of these sizes",
            given.layers,
            heads,
            heads,
            given.head_dim or 1,
            latent=latent,
            unserved=MLA_UNSERVED,
        )
    if given.kv_heads is None and given.heads is None:
        raise CliError("plain numbers need --kv-heads (or --heads, where every head has keys and values of its own)")
    if given.head_dim is None:
        raise CliError("plain numbers need --head-dim")
    heads = given.heads or given.kv_heads or 0
    return ModelShape("a model of these sizes", given.layers, heads, given.kv_heads or heads, given.head_dim)


def _latent(
    raw: Mapping[str, Any],
    name: str,
    given: Given,
    place: str,
    told: tuple[int, int | None, tuple[int | None, ...]],
) -> ModelShape:
    layers, context, windows = told
    rank = given.kv_lora_rank or _size(raw, ("kv_lora_rank",), place, "--kv-lora-rank")
    rope = given.qk_rope_head_dim or _size(raw, ("qk_rope_head_dim",), place, "--qk-rope-head-dim")
    heads = given.heads or _size(raw, HEADS, place, "--heads")
    value = _optional(raw, ("v_head_dim",), place)
    unrotated = _optional(raw, ("qk_nope_head_dim",), place)
    whole = None if value is None or unrotated is None else unrotated + rope + value
    head_dim = given.head_dim or value or 1
    latent = Latent(rank, rope, whole)
    return ModelShape(name, layers, heads, heads, head_dim, windows, context, latent, MLA_UNSERVED)


def _kv_heads(raw: Mapping[str, Any], heads: int, place: str) -> int:
    """As many as query heads when nothing says fewer, as transformers takes it."""
    if raw.get("multi_query") and not raw.get("new_decoder_architecture"):
        return 1
    return _optional(raw, KV_HEADS, place) or heads


def _head_dim(raw: Mapping[str, Any], heads: int, place: str) -> int:
    told = _optional(raw, ("head_dim",), place)
    if told is not None:
        return told
    hidden = _size(raw, HIDDEN, place, "--head-dim")
    if hidden % heads:
        raise CliError(f"{place}: head_dim is missing, and hidden_size {hidden} is no multiple of {heads} heads")
    return hidden // heads


def _size(raw: Mapping[str, Any], names: tuple[str, ...], place: str, flag: str) -> int:
    found = _optional(raw, names, place)
    if found is None:
        raise CliError(f"{place}: {names[0]} is missing; add it, or say it by {flag}")
    return found


def _optional(raw: Mapping[str, Any], names: tuple[str, ...], place: str) -> int | None:
    """The first of these fields that is set."""
    for name in names:
        value = raw.get(name)
        if value is None:
            continue
        if isinstance(value, list):
            raise CliError(f"{place}: {name} differs from layer to layer; the pool has one shape for all layers")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CliError(f"{place}: {name} must be a positive integer, found {value!r}")
        return value
    return None


def _windows(raw: Mapping[str, Any], layers: int, context: int | None, place: str) -> tuple[int | None, ...]:
    """Each layer's window, as the worker reads them; one as wide as the whole context is none."""
    window = _optional(raw, ("sliding_window",), place)
    slides = _sliding_layers(raw, layers, place)
    if window is None or (context is not None and window >= context):
        return (None,) * layers
    return tuple(window if sliding else None for sliding in slides)


def _sliding_layers(raw: Mapping[str, Any], layers: int, place: str) -> list[bool]:
    """Which layers have the window: by ``layer_types``, else by what the model's family does."""
    kinds = raw.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        if other := next((kind for kind in kinds if kind not in (_FULL, _SLIDING)), None):
            raise CliError(f"{place}: layer_types has {other!r}: only {_FULL} and {_SLIDING} are estimated here")
        return [kind == _SLIDING for kind in kinds]
    family = str(raw.get("model_type") or next(iter(raw.get("architectures") or ()), "")).lower()
    if "qwen" in family:
        if not raw.get("use_sliding_window"):
            return [False] * layers
        first = 0 if "moe" in family else raw.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise CliError(f"{place}: max_window_layers must be an integer, found {first!r}")
        return [index >= first for index in range(layers)]
    period = _optional(raw, ("sliding_window_pattern", "_sliding_window_pattern"), place)
    period = period or next((period for name, period in (("gemma2", 2), ("gemma3", 6)) if name in family), None)
    return [True if period is None else (index + 1) % period != 0 for index in range(layers)]
