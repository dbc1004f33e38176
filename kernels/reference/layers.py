"""What surrounds attention in a layer, in plain torch: norms, gates and products with weights."""

import torch
from torch.nn import functional

from kernels.packed import PackedLinear

NAME = "reference"


def add_rms_norm(
    hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """`kernels.add_rms_norm`."""
    if delta is not None:
        hidden += delta
    return functional.rms_norm(hidden, weight.shape, weight, epsilon)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`kernels.silu_mul`."""
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate) * up


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
    """`kernels.pack_linear`: the weights as they are."""
    return PackedLinear(NAME, weight, bias, weight.shape[1], weight.shape[0], gated=False)


def pack_gated_linear(gate_up: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
    """`kernels.pack_gated_linear`: the weights as they are."""
    return PackedLinear(NAME, gate_up, bias, gate_up.shape[1], gate_up.shape[0] // 2, gated=True)


def linear(values: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """`kernels.linear`."""
    product = functional.linear(values, packed.weight, packed.bias)
    return silu_mul(product) if packed.gated else product


def embedding(token_ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """`kernels.embedding`."""
    return functional.embedding(token_ids, packed.weight)
