"""Operations around attention: norms, gates, products with weights, and choosing the largest logits.

Tensors may have any strides unless a docstring says otherwise; those of one call lie on one device. Threads may call at
the same time, with the same weights, too. What is written in place may share memory with no other argument. Nothing is
recorded for gradients on the CPU.
"""

import torch

from kernels.backend import operation
from kernels.layer_checks import (
    check_gate_up,
    check_gated,
    check_logits,
    check_lookup,
    check_norm,
    check_product,
    check_weights,
)
from kernels.packed import Activation, PackedLinear
from kernels.quantize import Quantization


def add_rms_norm(
    hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Adds `delta` to `hidden` in place, if given, and returns `hidden / sqrt(mean(hidden^2) + epsilon) * weight`.

    hidden, delta  [tokens, width]; weight [width]; all of one dtype, ValueError otherwise
    """
    check_norm(hidden, delta, weight)
    normed: torch.Tensor = operation("add_rms_norm", hidden.device.type)(hidden, delta, weight, epsilon)
    return normed


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, [tokens, width], of gate and up side by side, [tokens, 2 * width]; ValueError otherwise."""
    check_gate_up(gate_up)
    product: torch.Tensor = operation("silu_mul", gate_up.device.type)(gate_up)
    return product


def pack_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, quantization: Quantization | None = None
) -> PackedLinear:
    """Makes the weights of `x @ weight.T + bias` ready for `linear`. They may be copied: drop `weight` afterwards.

    weight        [out, in], bias [out]
    quantization  int8: a scale per output; int4: a scale and a least value per 32 inputs, where `in` is a multiple of
                  32, else int8. Weights only: products are summed as without. kernels/quantize.py says how.

    ValueError for other shapes, no weights at all, and integers.
    """
    check_weights("weight", weight, bias)
    packed: PackedLinear = operation("pack_linear", weight.device.type)(weight, bias, quantization)
    return packed


def pack_gated_linear(
    gate_up: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: Activation = "silu",
    quantization: Quantization | None = None,
) -> PackedLinear:
    """Makes the weights of `activation(x @ gate.T + b) * (x @ up.T + c)` ready for `linear`.

    gate_up     [2 * out, in]: rows of gate, then up; bias [2 * out] likewise
    activation  silu, or gelu_tanh: GELU by its approximation with tanh

    ValueError as `pack_linear`, and for an odd number of rows or another activation.
    """
    check_weights("gate_up", gate_up, bias)
    check_gated(gate_up, activation)
    pack = operation("pack_gated_linear", gate_up.device.type)
    packed: PackedLinear = pack(gate_up, bias, activation, quantization)
    return packed


def linear(values: torch.Tensor, packed: PackedLinear, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """The product with packed weights: [tokens, in] becomes [tokens, out], in the dtype of `values` or as asked.

    ValueError when the widths or devices differ, for dtypes the weights' backend does not multiply, and for weights
    packed by another backend; MemoryError on CPU.
    """
    check_product(values, packed)
    product: torch.Tensor = operation("linear", values.device.type)(values, packed, output_dtype)
    return product


def embedding(token_ids: torch.Tensor, packed: PackedLinear, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Rows of packed weights, [tokens, in], by int64 [tokens]: a tied output layer need not be kept twice.

    In the dtype of the weights, float32 if they are quantised, or as asked. ValueError for gated weights; IndexError on
    CPU when an id is no row.
    """
    check_lookup(token_ids, packed)
    rows: torch.Tensor = operation("embedding", token_ids.device.type)(token_ids, packed, output_dtype)
    return rows


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """int64 [rows]: the index of the largest of each row of float32 [rows, width], the first one among equals.

    NaN counts as the largest. ValueError when rows are empty.
    """
    check_logits(logits)
    chosen: torch.Tensor = operation("argmax", logits.device.type)(logits)
    return chosen


def top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row of float32 [rows, width] and their indices, [rows, k] each.

    Largest first, equal ones in the order of their indices. ValueError unless 1 <= k <= width.
    """
    check_logits(logits)
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"k must lie in 1..{logits.shape[-1]}, got {k}")
    best: tuple[torch.Tensor, torch.Tensor] = operation("top_k", logits.device.type)(logits, k)
    return best
