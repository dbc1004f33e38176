"""Weights in fewer bits: what they are rounded to, whoever multiplies with them."""

from typing import Literal, NamedTuple

import torch

Quantization = Literal["int8", "int4"]

INT4_GROUP = 32
"""Inputs that share a scale and a least value."""
_INT8_TOP = 127
_INT4_TOP = 15


class Int8(NamedTuple):
    """weight = q * scale, a scale per output."""

    q: torch.Tensor
    """int8 [out, in]"""
    scale: torch.Tensor
    """float32 [out]"""

    def weight(self) -> torch.Tensor:
        """float32 [out, in]"""
        return self.q.float() * self.scale[:, None]


class Int4(NamedTuple):
    """weight = q * scale + least, a scale and a least value per output and group of 32 inputs."""

    q: torch.Tensor
    """uint8 [out, in], 0..15"""
    scale: torch.Tensor
    """bfloat16 [out, in / 32]"""
    least: torch.Tensor
    """bfloat16 [out, in / 32]"""

    def weight(self) -> torch.Tensor:
        """float32 [out, in]"""
        groups = self.q.float().view(*self.scale.shape, INT4_GROUP)
        return (groups * self.scale.float()[..., None] + self.least.float()[..., None]).flatten(1)


def quantize(weight: torch.Tensor, quantization: Quantization) -> Int8 | Int4:
    """Rounds [out, in]. Four bits need whole groups of inputs: other widths get eight."""
    if quantization not in ("int8", "int4"):
        raise ValueError(f"quantization {quantization!r} is not known; known: int8, int4")
    wide = weight.float()
    if quantization == "int8" or wide.shape[1] % INT4_GROUP:
        scale = wide.abs().amax(1) / _INT8_TOP
        return Int8((wide / _divisor(scale)[:, None]).round().to(torch.int8), scale)
    groups = wide.reshape(wide.shape[0], -1, INT4_GROUP)
    lowest, highest = groups.amin(-1), groups.amax(-1)
    # The steps are counted with the rounded scale and least value: their own rounding then costs next to nothing.
    scale, least = ((highest - lowest) / _INT4_TOP).bfloat16(), lowest.bfloat16()
    steps = (groups - least.float()[..., None]) / _divisor(scale.float())[..., None]
    return Int4(steps.round().clamp(0, _INT4_TOP).to(torch.uint8).flatten(1), scale, least)


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    """1 where all weights are equal, and any scale serves."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)
