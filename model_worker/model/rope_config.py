"""Reading a config.json's rotary embedding: transformers 5 writes `rope_parameters`, before it wrote `rope_scaling`."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from model_worker.model.config import read_object, read_positive
from model_worker.model.errors import CheckpointError, UnsupportedModelError
from model_worker.model.rope import RopeConfig
from model_worker.model.rope_scaling import FREQUENCIES

DEFAULT_THETA = 10000.0
_OLD_NAMES = {"su": "longrope"}


class Contexts(NamedTuple):
    """Numbers of positions."""

    made_for: int
    """config.json's max_position_embeddings"""
    served: int
    """prompt and output together, in this worker"""


def read_rope(given: Mapping[str, Any], raw: Mapping[str, Any], contexts: Contexts, head_dim: int) -> RopeConfig:
    """One rotary embedding from its own entries, `given`, and those of the whole config.json.

    Raises UnsupportedModelError for a type that is not known, CheckpointError when a parameter is missing or wrong.
    """
    rope_type = given.get("rope_type") or given.get("type") or "default"
    rope_type = _OLD_NAMES.get(str(rope_type), rope_type)
    if not isinstance(rope_type, str) or rope_type not in FREQUENCIES:
        raise UnsupportedModelError(f"rope type {rope_type!r} is not supported; supported: {', '.join(FREQUENCIES)}")
    plain = RopeConfig(
        rope_type=rope_type,
        theta=read_positive(given, "rope_theta", read_positive(raw, "rope_theta", DEFAULT_THETA)),
        partial=read_positive(given, "partial_rotary_factor", read_positive(raw, "partial_rotary_factor", 1.0)),
    )
    dim = plain.rotary_dim(head_dim)
    if dim < 2 or dim > head_dim or dim % 2:
        raise CheckpointError(f"{dim} rotary dimensions of {head_dim}: rotary embeddings need pairs")
    try:
        rope = _with_scaling(plain, given, raw, contexts)
    except KeyError as missing:
        raise CheckpointError(f"rope type {rope_type!r} needs {missing.args[0]}") from missing
    if rope_type == "longrope" and len(rope.divisors) != dim // 2:
        raise CheckpointError(f"longrope gives {len(rope.divisors)} divisors for {dim // 2} frequencies")
    return rope


def parameters(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of config.json that describe its rotary embedding, or one for each kind of layer."""
    return {**read_object(raw, "rope_scaling"), **read_object(raw, "rope_parameters")}


def _with_scaling(
    plain: RopeConfig, given: Mapping[str, Any], raw: Mapping[str, Any], contexts: Contexts
) -> RopeConfig:
    # Phi-3 writes it beside the parameters, and then it counts.
    name = "original_max_position_embeddings"
    original = int(read_positive(raw, name, read_positive(given, name, contexts.made_for)))
    match plain.rope_type:
        case "default":
            return plain
        case "linear":
            return replace(plain, factor=read_positive(given, "factor"))
        case "dynamic":
            return replace(
                plain,
                factor=read_positive(given, "factor"),
                original_max_context=contexts.made_for,
                served_context=max(contexts.served, contexts.made_for),
            )
        case "llama3":
            return replace(
                plain,
                factor=read_positive(given, "factor"),
                low_freq_factor=read_positive(given, "low_freq_factor"),
                high_freq_factor=read_positive(given, "high_freq_factor"),
                original_max_context=original,
            )
        case "yarn":
            factor = read_positive(given, "factor", contexts.made_for / original)
            return replace(
                plain,
                factor=factor,
                original_max_context=original,
                beta_fast=read_positive(given, "beta_fast", 32.0),
                beta_slow=read_positive(given, "beta_slow", 1.0),
                truncate=bool(given.get("truncate", True)),
                magnitude=_yarn_magnitude(given, factor),
            )
        case _:
            factor = read_positive(given, "factor", contexts.made_for / original)
            divisors = given["long_factor" if contexts.served > original else "short_factor"]
            return replace(
                plain,
                factor=factor,
                original_max_context=original,
                divisors=tuple(float(divisor) for divisor in divisors),
                magnitude=_longrope_magnitude(given, factor, original),
            )


def _yarn_magnitude(given: Mapping[str, Any], factor: float) -> float:
    """YaRN, section 3.4: 0.1 ln(factor) + 1; DeepSeek divides two such terms."""

    def term(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.get("attention_factor") is not None:
        return read_positive(given, "attention_factor")
    if given.get("mscale") and given.get("mscale_all_dim"):
        return term(read_positive(given, "mscale")) / term(read_positive(given, "mscale_all_dim"))
    return term(1.0)


def _longrope_magnitude(given: Mapping[str, Any], factor: float, original: int) -> float:
    """LongRoPE, section 3: sqrt(1 + ln(factor) / ln(original context))."""
    if given.get("attention_factor") is not None:
        return read_positive(given, "attention_factor")
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
