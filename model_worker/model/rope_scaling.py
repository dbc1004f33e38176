"""Rotary frequencies of every context scaling: float32 [rotary_dim / 2], radians per position."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from model_worker.model.rope import RopeConfig


def _plain(rope: "RopeConfig", dim: int) -> torch.Tensor:
    return 1.0 / rope.theta ** _exponents(dim)


def _linear(rope: "RopeConfig", dim: int) -> torch.Tensor:
    """Position interpolation (Chen et al. 2023): positions are divided by the factor."""
    return _plain(rope, dim) / rope.factor


def _dynamic(rope: "RopeConfig", dim: int) -> torch.Tensor:
    """Dynamic NTK: beyond the original context the base grows, so that the longest wave still spans what is served."""
    longest = max(rope.served_context, rope.original_max_context)
    stretch = rope.factor * longest / rope.original_max_context - (rope.factor - 1)
    theta: float = rope.theta * stretch ** (dim / (dim - 2))
    return 1.0 / theta ** _exponents(dim)


def _llama3(rope: "RopeConfig", dim: int) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between interpolated.

    With turns = original context / wavelength the kept share is (turns - low) / (high - low), clamped to 0..1.
    """
    base = _plain(rope, dim)
    turns = rope.original_max_context * base / (2 * math.pi)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - kept) * base / rope.factor + kept * base


def _yarn(rope: "RopeConfig", dim: int) -> torch.Tensor:
    """YaRN (Peng et al. 2023), section 3.2: dimensions that turn `beta_fast` times or more within the original context
    are kept, those that turn `beta_slow` times or less are divided by `factor`, a ramp lies between."""

    def dimension_of(turns: float) -> float:
        return dim * math.log(rope.original_max_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step rather than a division by zero
    divided = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    base = _plain(rope, dim)
    return base / rope.factor * divided + base * (1 - divided)


def _longrope(rope: "RopeConfig", dim: int) -> torch.Tensor:
    """LongRoPE (Ding et al. 2024): a searched divisor for every frequency."""
    return 1.0 / (torch.tensor(rope.divisors, dtype=torch.float32) * rope.theta ** _exponents(dim))


def _exponents(dim: int) -> torch.Tensor:
    return torch.arange(0, dim, 2, dtype=torch.float32) / dim


FREQUENCIES: dict[str, Callable[["RopeConfig", int], torch.Tensor]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
