"""Writing a step's K and V by the C++ library."""

import ctypes

import torch

from kernels import reference
from kernels.checks import FP8
from kernels.cpu.library import POOL_TYPES, VALUE_TYPES, Write, kernels, refuse


def write_kv(
    pool: torch.Tensor,
    layer: int,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    *,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """`kernels.write_kv`; float64 and e4m3fnuz go to the reference."""
    if not _covered(pool, key, value):
        return reference.write_kv(pool, layer, key, value, slots, kv_scales=kv_scales)
    return _write(pool, layer, key, value, slots, kv_scales, None)


def write_rotated_kv(
    pool: torch.Tensor,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    *,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """`kernels.write_rotated_kv`; float64 and e4m3fnuz go to the reference."""
    if (
        not _covered(pool, key, value)
        or query.dtype != key.dtype
        or not _heads_together(query)
        or not cosine.dtype == sine.dtype == torch.float32
    ):
        return reference.write_rotated_kv(pool, layer, query, key, value, slots, cosine, sine, kv_scales=kv_scales)
    return _write(pool, layer, key, value, slots, kv_scales, (query, cosine.contiguous(), sine.contiguous()))


def _write(
    pool: torch.Tensor,
    layer: int,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    kv_scales: torch.Tensor | None,
    rotation: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
) -> None:
    if not _heads_together(key):
        key = key.contiguous()
    if not _heads_together(value):
        value = value.contiguous()
    slots = slots.contiguous()
    scales = kv_scales.contiguous() if kv_scales is not None and pool.dtype in FP8 else None
    if rotation is None:
        query_at, query_stride, heads, cosine_at, sine_at, half = None, 0, 0, None, None, 0
    else:
        query, cosine, sine = rotation
        query_at, query_stride, heads = query.data_ptr(), query.stride(0), query.shape[1]
        cosine_at, sine_at, half = cosine.data_ptr(), sine.data_ptr(), cosine.shape[1]
    num_blocks, _, _, kv_heads, block_size, head_dim = pool.shape
    block_stride, layer_stride, value_offset, head_stride, _, _ = pool.stride()
    # In the order of the struct: naming twenty fields takes as long as writing sixteen tokens.
    call = Write(
        query_at,
        key.data_ptr(),
        value.data_ptr(),
        query_stride,
        key.stride(0),
        value.stride(0),
        cosine_at,
        sine_at,
        pool.data_ptr() + layer * layer_stride * pool.element_size(),
        value_offset,
        block_stride,
        head_stride,
        num_blocks,
        slots.data_ptr(),
        VALUE_TYPES[key.dtype],
        POOL_TYPES[pool.dtype],
        slots.shape[0],
        heads,
        kv_heads,
        head_dim,
        half,
        block_size,
        torch.get_num_threads(),
        None if scales is None else scales.data_ptr(),
    )
    refuse(kernels().write(ctypes.byref(call)), f"a slot lies outside the pool's {pool.shape[0]} blocks")


def _covered(pool: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    return (
        key.dtype in VALUE_TYPES
        and value.dtype == key.dtype
        and pool.dtype in POOL_TYPES
        and pool.stride(5) == 1
        and pool.stride(4) == pool.shape[5]
    )


def _heads_together(tensor: torch.Tensor) -> bool:
    """Whether a token's heads lie one after the other."""
    return tensor.stride(2) == 1 and tensor.stride(1) == tensor.shape[2]
