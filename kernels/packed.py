"""Weights of a matrix product, in the order the backend that multiplies with them reads."""

from dataclasses import dataclass
from typing import Literal

import torch

from kernels.quantize import Quantization

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """Weights made ready once by `pack_linear` or `pack_gated_linear`."""

    backend: str
    """The backend whose `linear` understands `weight`."""
    weight: torch.Tensor
    """The weights in that backend's order."""
    bias: torch.Tensor | None
    in_features: int
    out_features: int
    """Width of the product; with a gate, of the gated product."""
    gated: bool
    """The product is activation(gate) * up."""
    activation: Activation = "silu"
    quantization: Quantization | None = None
    """How the weights are stored; None: in their own dtype."""
    scales: torch.Tensor | None = None
    """float32 in that backend's order, where the weights need them."""
