"""Weights of a matrix product, in the order the backend that multiplies with them reads."""

from dataclasses import dataclass

import torch


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
    """The product is silu(gate) * up."""
