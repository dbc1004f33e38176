"""Norms, gates, embeddings and products with packed weights by the C++ library."""

import ctypes

import torch

from kernels import reference
from kernels.cpu.library import (
    GATINGS,
    TYPES,
    WEIGHT_TYPES,
    Embedding,
    Gate,
    Linear,
    Norm,
    kernels,
    refuse,
)
from kernels.cpu.packing import NAME
from kernels.packed import PackedLinear


def add_rms_norm(
    hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """`kernels.add_rms_norm` in float32 and bfloat16; other dtypes go to the reference."""
    dtype = hidden.dtype
    if dtype not in TYPES or weight.dtype != dtype or not hidden.is_contiguous():
        return reference.add_rms_norm(hidden, delta, weight, epsilon)
    if delta is not None:
        if delta.shape != hidden.shape or delta.dtype != dtype:
            raise ValueError(f"delta {delta.dtype} {list(delta.shape)} for hidden {dtype} {list(hidden.shape)}")
        delta = delta.contiguous()
    weight = weight.contiguous()
    rows, width = hidden.shape
    output = torch.empty_like(hidden)
    call = Norm(
        hidden.data_ptr(),
        None if delta is None else delta.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
        TYPES[dtype],
        rows,
        width,
        epsilon,
        torch.get_num_threads(),
    )
    kernels().add_rms_norm(ctypes.byref(call))
    return output


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`kernels.silu_mul` in float32 and bfloat16; other dtypes go to the reference."""
    if gate_up.dtype not in TYPES:
        return reference.silu_mul(gate_up)
    gate_up = gate_up.contiguous()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = torch.empty(rows, width, dtype=gate_up.dtype)
    call = Gate(gate_up.data_ptr(), output.data_ptr(), TYPES[gate_up.dtype], rows, width, torch.get_num_threads())
    kernels().silu_mul(ctypes.byref(call))
    return output


def linear(values: torch.Tensor, packed: PackedLinear, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """`kernels.linear`. A row's product has the same bits whatever rows are beside it."""
    if packed.backend != NAME:
        return reference.linear(values, packed, output_dtype)
    dtype, wanted = values.dtype, output_dtype or values.dtype
    if dtype not in TYPES or wanted not in TYPES:
        raise ValueError(f"values of {dtype} for a product in {wanted} with weights packed in {packed.weight.dtype}")
    values = values.contiguous()
    rows = values.shape[0]
    output = torch.empty(rows, packed.out_features, dtype=wanted)
    if rows == 0:
        return output
    call = product(packed, dtype, wanted)
    call.input, call.output = values.data_ptr(), output.data_ptr()
    call.rows, call.threads = rows, torch.get_num_threads()
    refuse(kernels().linear(ctypes.byref(call)))
    return output


def product(packed: PackedLinear, dtype: torch.dtype, output_dtype: torch.dtype) -> Linear:
    """The arguments of a product but for its input, output, rows and threads."""
    # In the order of the struct: naming the fields takes several times as long.
    return Linear(
        None,
        None,
        packed.weight.data_ptr(),
        None if packed.bias is None else packed.bias.data_ptr(),
        None if packed.scales is None else packed.scales.data_ptr(),
        TYPES[dtype],
        TYPES[output_dtype],
        WEIGHT_TYPES[packed.weight.dtype],
        0,
        packed.in_features,
        packed.out_features,
        packed.weight.shape[0],
        GATINGS[packed.activation] if packed.gated else 0,
        1,
    )


def embedding(token_ids: torch.Tensor, packed: PackedLinear, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """`kernels.embedding`: a row is a column of its panel."""
    if packed.backend != NAME:
        return reference.embedding(token_ids, packed, output_dtype)
    stored = packed.weight.dtype if packed.weight.dtype in TYPES else torch.float32
    wanted = output_dtype or stored
    if wanted not in TYPES:
        return embedding(token_ids, packed, stored).to(wanted)
    token_ids = token_ids.contiguous()
    output = torch.empty(token_ids.shape[0], packed.in_features, dtype=wanted)
    call = Embedding(
        token_ids.data_ptr(),
        output.data_ptr(),
        packed.weight.data_ptr(),
        None if packed.scales is None else packed.scales.data_ptr(),
        TYPES[wanted],
        WEIGHT_TYPES[packed.weight.dtype],
        token_ids.shape[0],
        packed.in_features,
        packed.out_features,
        torch.get_num_threads(),
    )
    refuse(kernels().embedding(ctypes.byref(call)), f"a token id lies outside 0..{packed.out_features - 1}")
    return output
