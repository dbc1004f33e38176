"""What the rest of the worker needs to know of any model, and reading values out of a config.json."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_worker.model.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder-only model. Its KV pool has `num_layers`, `num_kv_heads` and `head_dim`."""

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    """Positions that are served: prompt and output together."""
    window: int | None
    """When every layer attends to at most this many last tokens, so that older blocks can be given back; else None."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Ids that end a generation, possibly none."""


def architecture_of(raw: Mapping[str, Any]) -> str:
    """The architecture named by a config.json. Raises CheckpointError when it names none."""
    names = raw.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError("config.json names no architecture")
    return str(names[0])


def read_size(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer. Raises CheckpointError."""
    value = raw.get(name)
    if value is None:
        value = default
    if value is None:
        raise CheckpointError(f"config.json has no {name}")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {name} must be a positive integer, got {value!r}")
    return value


def read_positive(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A finite number above 0. Raises CheckpointError; KeyError when there is none and no default."""
    value = raw.get(name)
    if value is None:
        if default is None:
            raise KeyError(name)
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise CheckpointError(f"config.json: {name} must be a finite number above 0, got {value!r}")
    return float(value)


def read_object(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A JSON object, empty for null. Raises CheckpointError."""
    value = raw.get(name)
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(f"config.json: {name} must be an object, got {value!r}")
    return value or {}


def read_ids(raw: Mapping[str, Any], generation: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """Token ids given as an int, a list or null; generation_config.json wins, as in transformers' generate.

    An id without a logit is left out: it can never be chosen. Some configurations say -1 for none, others name a token
    that was added to the tokenizer alone.
    """
    value = generation.get(name)
    if value is None:
        value = raw.get(name)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) for token in ids):
        raise CheckpointError(f"{name} must be an integer or a list of integers, got {value!r}")
    return tuple(token for token in ids if 0 <= token < vocab_size)


def common_window(windows: tuple[int | None, ...]) -> int | None:
    """The tokens that some layer still reads, or None when a layer reads all of them."""
    widest = 0
    for window in windows:
        if window is None:
            return None
        widest = max(widest, window)
    return widest or None
