"""Norms, gates and products with weights by the C++ library."""

import ctypes

import torch
from torch.nn import functional

from kernels import reference
from kernels.cpu.library import TYPES, Gate, Linear, Norm, kernels
from kernels.cpu.memory import Arena
from kernels.packed import PackedLinear

NAME = "cpu"
PANEL = 16
"""Output columns of a panel of packed weights."""

_PAIRED = [column for low in range(PANEL // 2) for column in (low, low + PANEL // 2)]
"""Order of a panel row's columns in bfloat16: see `load_panel_row` in src/matrix.h."""

_arena = Arena()


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


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
    """`kernels.pack_linear`: panels [out / 16, in, 16] in huge pages; dtypes not covered stay with the reference."""
    if weight.dtype not in TYPES:
        return reference.pack_linear(weight, bias)
    out_features, in_features = weight.shape
    panels = _arena.empty((-(-out_features // PANEL), in_features, PANEL), weight.dtype)
    panels.copy_(_panels(weight))
    packed_bias = None if bias is None else _panels(bias.float()[:, None]).flatten()
    return PackedLinear(NAME, panels, packed_bias, in_features, out_features, gated=False)


def pack_gated_linear(gate_up: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
    """`kernels.pack_gated_linear`: panels of gate and up alternate, so that one thread has both at hand."""
    if gate_up.dtype not in TYPES:
        return reference.pack_gated_linear(gate_up, bias)
    out_features, in_features = gate_up.shape[0] // 2, gate_up.shape[1]
    panels = _arena.empty((-(-out_features // PANEL) * 2, in_features, PANEL), gate_up.dtype)
    for half, weight in enumerate(gate_up.chunk(2)):
        panels[half::2] = _panels(weight)
    packed_bias = None
    if bias is not None:
        halves = [_panels(part.float()[:, None]) for part in bias.chunk(2)]
        packed_bias = torch.stack(halves, 1).flatten()
    return PackedLinear(NAME, panels, packed_bias, in_features, out_features, gated=True)


def linear(values: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """`kernels.linear`. A row's product has the same bits whatever rows are beside it."""
    if packed.backend != NAME:
        return reference.linear(values, packed)
    dtype = values.dtype
    if dtype not in TYPES:
        raise ValueError(f"values of {dtype} for weights packed in {packed.weight.dtype}")
    values = values.contiguous()
    rows = values.shape[0]
    output = torch.empty(rows, packed.out_features, dtype=dtype)
    if rows == 0:
        return output
    call = Linear(
        values.data_ptr(),
        output.data_ptr(),
        packed.weight.data_ptr(),
        None if packed.bias is None else packed.bias.data_ptr(),
        TYPES[dtype],
        TYPES[packed.weight.dtype],
        rows,
        packed.in_features,
        packed.out_features,
        packed.weight.shape[0],
        packed.gated,
        torch.get_num_threads(),
    )
    kernels().linear(ctypes.byref(call))
    return output


def embedding(token_ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """`kernels.embedding`: a row is a column of its panel."""
    if packed.backend != NAME:
        return reference.embedding(token_ids, packed)
    columns = token_ids % PANEL
    if packed.weight.dtype == torch.bfloat16:
        columns = torch.tensor(_PAIRED).argsort()[columns]
    if token_ids.numel() and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < packed.out_features:
        raise IndexError(f"a token id lies outside 0..{packed.out_features - 1}")
    return packed.weight[token_ids // PANEL, :, columns]


def _panels(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] as [out / 16, in, 16], the last panel filled up with zeros; a view where it can be."""
    out_features, in_features = weight.shape
    padded = functional.pad(weight, (0, 0, 0, -out_features % PANEL))
    panels = padded.view(-1, PANEL, in_features).transpose(1, 2)
    return panels[..., _PAIRED] if weight.dtype == torch.bfloat16 else panels
