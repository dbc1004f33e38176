"""Rotary position embeddings (Su et al. 2021) in the half-split layout: dimension i turns with i + head_dim / 2."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from model_worker.model.errors import CheckpointError, UnsupportedModelError

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base frequency and context scaling. The last four fields belong to `linear` (factor) and `llama3` (all)."""

    rope_type: str
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_context: int = 0

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], max_context: int) -> "RopeConfig":
        """From config.json: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before)."""
        given = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
        rope_type = given.get("rope_type", given.get("type", "default"))
        if rope_type not in ROPE_TYPES:
            raise UnsupportedModelError(f"rope type {rope_type!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
        partial = given.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
        if partial != 1.0:
            raise UnsupportedModelError(f"partial_rotary_factor {partial} is not supported; supported: 1.0")
        theta = float(given.get("rope_theta", raw.get("rope_theta", 10000.0)))
        if rope_type == "default":
            return cls(rope_type, theta)
        try:
            if rope_type == "linear":
                return cls(rope_type, theta, float(given["factor"]))
            return cls(
                rope_type,
                theta,
                float(given["factor"]),
                float(given["low_freq_factor"]),
                float(given["high_freq_factor"]),
                int(given.get("original_max_position_embeddings", max_context)),
            )
        except KeyError as missing:
            raise CheckpointError(f"rope type {rope_type!r} needs {missing.args[0]}") from missing


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2], radians per position."""
    base = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.rope_type == "linear":
        return base / rope.factor
    if rope.rope_type == "llama3":
        return _llama3(rope, base)
    return base


def _llama3(rope: RopeConfig, base: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between interpolated.

    With turns = original context / wavelength the kept share is (turns - low) / (high - low), clamped to 0..1.
    """
    turns = rope.original_max_context * base / (2 * math.pi)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - kept) * base / rope.factor + kept * base


class Rotation(NamedTuple):
    """One step's rotations, float32 [tokens, head_dim / 2] each."""

    cosine: torch.Tensor
    sine: torch.Tensor


def rotation_at(positions: torch.Tensor, frequencies: torch.Tensor) -> Rotation:
    """Rotations for positions int64 [tokens], from `inverse_frequencies` on the same device."""
    angles = torch.outer(positions.float(), frequencies)
    return Rotation(angles.cos(), angles.sin())
