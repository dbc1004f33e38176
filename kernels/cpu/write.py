"""Writing a step's K and V by the C++ library."""

import ctypes

import torch

from kernels import reference
from kernels.checks import check_rotation, check_written
from kernels.cpu.library import TYPES, Write, kernels, refuse_bad_index


def write_kv(
    pool: torch.Tensor,
    layer: int,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    *,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """`kernels.write_kv` in float32 and bfloat16; other dtypes go to the reference."""
    check_written(pool, key, value, slots, kv_scales)
    if kv_scales is not None or not _covered(pool, key, value):
        return reference.write_kv(pool, layer, key, value, slots, kv_scales=kv_scales)
    return _write(pool, layer, key, value, slots, None)


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
    """`kernels.write_rotated_kv` in float32 and bfloat16; other dtypes go to the reference."""
    check_written(pool, key, value, slots, kv_scales)
    check_rotation(query, cosine, sine)
    if (
        kv_scales is not None
        or not _covered(pool, key, value)
        or query.dtype != key.dtype
        or not _heads_together(query)
        or cosine.dtype != torch.float32
    ):
        return reference.write_rotated_kv(pool, layer, query, key, value, slots, cosine, sine, kv_scales=kv_scales)
    return _write(pool, layer, key, value, slots, (query, cosine.contiguous(), sine.contiguous()))


def _write(
    pool: torch.Tensor,
    layer: int,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
) -> None:
    if not _heads_together(key):
        key = key.contiguous()
    if not _heads_together(value):
        value = value.contiguous()
    slots = slots.contiguous()
    call = Write(
        key=key.data_ptr(),
        value=value.data_ptr(),
        key_stride=key.stride(0),
        value_stride=value.stride(0),
        keys=pool.data_ptr() + layer * pool.stride(1) * pool.element_size(),
        value_offset=pool.stride(2),
        block_stride=pool.stride(0),
        head_stride=pool.stride(3),
        num_blocks=pool.shape[0],
        slots=slots.data_ptr(),
        value_type=TYPES[key.dtype],
        pool_type=TYPES[pool.dtype],
        tokens=slots.shape[0],
        kv_heads=pool.shape[3],
        head_dim=pool.shape[5],
        block_size=pool.shape[4],
        threads=torch.get_num_threads(),
    )
    if rotation is not None:
        query, cosine, sine = rotation
        call.query, call.query_stride, call.heads = query.data_ptr(), query.stride(0), query.shape[1]
        call.cosine, call.sine, call.half = cosine.data_ptr(), sine.data_ptr(), cosine.shape[1]
    refuse_bad_index(kernels().write(ctypes.byref(call)), f"a slot lies outside the pool's {pool.shape[0]} blocks")


def _covered(pool: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    return (
        key.dtype in TYPES
        and value.dtype == key.dtype
        and pool.dtype in TYPES
        and pool.stride(5) == 1
        and pool.stride(4) == pool.shape[5]
    )


def _heads_together(tensor: torch.Tensor) -> bool:
    """Whether a token's heads lie one after the other."""
    return tensor.stride(2) == 1 and tensor.stride(1) == tensor.shape[2]
