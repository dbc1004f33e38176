"""Rotary position embeddings (Su et al. 2021) in the half-split layout: dimension i turns with i + rotary_dim / 2."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from model_worker.model.rope_scaling import FREQUENCIES


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base frequency and context scaling of one kind of layer; `rope_config` reads it from a config.json.

    Keys lie in blocks that sequences share, so a rotation may depend on its position and on the context a worker
    serves, but not on the length of the sequence at hand. Where a type changes its frequencies with the length
    (dynamic, longrope), `served_context` stands for it.
    """

    rope_type: str
    theta: float
    partial: float = 1.0
    """The share of a head's dimensions that turns."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_context: int = 0
    served_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """yarn: the ramp begins and ends at whole dimensions."""
    divisors: tuple[float, ...] = ()
    """longrope: one per frequency, those of the context served."""
    magnitude: float = 1.0
    """yarn and longrope: multiplies cosine and sine, so that scores are scaled by its square."""

    def rotary_dim(self, head_dim: int) -> int:
        """How many of a head's dimensions turn, the first ones."""
        return int(head_dim * self.partial)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 [rotary_dim / 2], radians per position."""
    return FREQUENCIES[rope.rope_type](rope, rope.rotary_dim(head_dim))


class Rotation(NamedTuple):
    """Of positions, float32 [positions, rotary_dim / 2] each."""

    cosine: torch.Tensor
    sine: torch.Tensor


def rotation_at(positions: torch.Tensor, frequencies: torch.Tensor, magnitude: float = 1.0) -> Rotation:
    """Rotations for positions int64 [positions], from `inverse_frequencies` on the same device."""
    angles = torch.outer(positions.float(), frequencies)
    cosine, sine = angles.cos(), angles.sin()
    return Rotation(cosine, sine) if magnitude == 1.0 else Rotation(cosine * magnitude, sine * magnitude)


class RotationTable:
    """Rotations by position, computed once: looking one up is cheaper than five operations a step.

    It grows with the longest context met, to a new place. So a CUDA graph is to be captured with the longest context
    there may be, after a run with the same.
    """

    LEAST = 1024

    def __init__(self, frequencies: torch.Tensor, magnitude: float) -> None:
        self._frequencies = frequencies
        self._magnitude = magnitude
        self._rows = self._made(self.LEAST)

    def rows(self, length: int) -> Rotation:
        """Those of at least the first `length` positions, float32 [positions, rotary_dim / 2]."""
        if length > len(self._rows.cosine):
            self._rows = self._made(1 << (length - 1).bit_length())
        return self._rows

    def _made(self, length: int) -> Rotation:
        return rotation_at(torch.arange(length, device=self._frequencies.device), self._frequencies, self._magnitude)
