"""What surrounds attention in a layer, in plain torch: norms, gates and products with weights."""

import torch
from torch.nn import functional

from kernels.layer_checks import check_own
from kernels.packed import Activation, PackedLinear
from kernels.quantize import Quantization, quantize

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


def pack_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, quantization: Quantization | None = None
) -> PackedLinear:
    """`kernels.pack_linear`: the weights as they are, or what they were rounded to, in their own dtype."""
    rounded = _rounded(weight, quantization)
    return PackedLinear(NAME, rounded, bias, weight.shape[1], weight.shape[0], gated=False, quantization=quantization)


def pack_gated_linear(
    gate_up: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: Activation = "silu",
    quantization: Quantization | None = None,
) -> PackedLinear:
    """`kernels.pack_gated_linear`: as `pack_linear`."""
    return PackedLinear(
        NAME,
        _rounded(gate_up, quantization),
        bias,
        gate_up.shape[1],
        gate_up.shape[0] // 2,
        gated=True,
        activation=activation,
        quantization=quantization,
    )


def linear(values: torch.Tensor, packed: PackedLinear, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """`kernels.linear`."""
    check_own(packed, NAME)
    bias = None if packed.bias is None else packed.bias.to(values.dtype)
    product = functional.linear(values, packed.weight.to(values.dtype), bias)
    if packed.gated:
        gate, up = product.chunk(2, -1)
        product = (
            functional.silu(gate) if packed.activation == "silu" else functional.gelu(gate, approximate="tanh")
        ) * up
    return product if output_dtype is None else product.to(output_dtype)


def embedding(token_ids: torch.Tensor, packed: PackedLinear, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """`kernels.embedding`."""
    check_own(packed, NAME)
    rows = functional.embedding(token_ids, packed.weight)
    return rows if output_dtype is None else rows.to(output_dtype)


def _rounded(weight: torch.Tensor, quantization: Quantization | None) -> torch.Tensor:
    return weight if quantization is None else quantize(weight, quantization).weight().to(weight.dtype)
