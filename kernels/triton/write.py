"""Writing a step's K and V into the pool, alone or fused with rotary embeddings; and zeroing blocks: the launchers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.checks import FP8
from kernels.staging import to_device
from kernels.triton.device import check_format, launching_on
from kernels.triton.tiles import power_of_two
from kernels.triton.write_kernels import write_kv_kernel, zero_blocks_kernel

HEADS_PER_PROGRAM = 8
"""By one warp, so that every lane has 16 bytes of each row to move: more would have less."""
BYTES_PER_PROGRAM = 16384


def write_kv(
    pool: torch.Tensor,
    layer: int,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    *,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """Writes one layer's K and V of a step's tokens into their slots, in place.

    pool       [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim] by strides, last dimension contiguous
    key        [tokens, kv_heads, head_dim] by strides, as value; converted to the pool's dtype where it differs
    slots      int64 [tokens], `block * block_size + offset`; slots of block 0 may repeat, all others must be distinct.
               A token with a slot outside the pool (-1 for padding) is not written
    kv_scales  float32 [2, kv_heads], with an fp8 pool: stored is K / kv_scales[0] and V / kv_scales[1], held to the
               format's range

    Arguments are those that `kernels.write_kv` lets through. Raises ValueError for other strides.
    """
    _launch(_Write(pool, layer, key, value, slots, kv_scales), None)


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
    """`write_kv` of rotated keys, and the rotation of the queries in place, in one pass over both.

    query         [tokens, heads, head_dim] by strides, rotated in place; key itself is not changed
    cosine, sine  [tokens, half] by strides, 2 * half <= head_dim: with a = x[i] and b = x[half + i], x[i] becomes
                  a cos - b sin and x[half + i] b cos + a sin; dimensions from 2 * half on stay. Computed in float32
    """
    if cosine.stride() != sine.stride() or cosine.stride(1) != 1 or query.stride(2) != 1:
        raise ValueError("the last dimension of query, cosine and sine must be contiguous, the two laid out alike")
    _launch(_Write(pool, layer, key, value, slots, kv_scales), _Rotation(query, cosine, sine))


def zero_blocks(pool: torch.Tensor, blocks: Sequence[int]) -> None:
    """Zeroes whole blocks (all layers) of a contiguous pool.

    ValueError, nothing done, if one lies outside the pool or the pool is not contiguous.
    """
    if not pool.is_contiguous():
        raise ValueError("blocks are zeroed as contiguous pieces, and this pool is not contiguous")
    for block in blocks:
        if not 0 <= block < pool.shape[0]:
            raise ValueError(f"block {block} cannot be zeroed: a block id lies in 0..{pool.shape[0] - 1}")
    if not blocks:
        return
    block_bytes = pool.stride(0) * pool.element_size()
    with launching_on(pool):
        zero_blocks_kernel[len(blocks), -(-block_bytes // BYTES_PER_PROGRAM)](
            pool.view(torch.uint8),
            to_device(blocks, torch.int32, pool.device),
            block_bytes,
            BYTES=BYTES_PER_PROGRAM,
            num_warps=4,
        )


@dataclass(frozen=True, slots=True)
class _Write:
    pool: torch.Tensor
    layer: int
    key: torch.Tensor
    value: torch.Tensor
    slots: torch.Tensor
    kv_scales: torch.Tensor | None

    def __post_init__(self) -> None:
        check_format(self.pool.dtype, self.pool.device)
        if self.key.stride(2) != 1 or self.value.stride(2) != 1 or self.pool.stride(5) != 1:
            raise ValueError("the last dimension of key, value and pool must be contiguous")


@dataclass(frozen=True, slots=True)
class _Rotation:
    query: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor


def _launch(write: _Write, rotation: _Rotation | None) -> None:
    pool, key, value = write.pool, write.key, write.value
    tokens, kv_heads, head_dim = key.shape
    if not tokens:
        return
    keys, values = pool[:, write.layer, 0], pool[:, write.layer, 1]
    query = rotation.query if rotation else None
    heads = query.shape[1] if query is not None else 0
    half = rotation.cosine.shape[1] if rotation else 0
    scales = write.kv_scales.contiguous() if write.kv_scales is not None and pool.dtype in FP8 else None
    with launching_on(pool):
        write_kv_kernel[tokens, -(-kv_heads // HEADS_PER_PROGRAM) + -(-heads // HEADS_PER_PROGRAM)](
            query,
            key,
            value,
            keys,
            values,
            write.slots.contiguous(),
            rotation.cosine if rotation else None,
            rotation.sine if rotation else None,
            scales,
            torch.finfo(pool.dtype).max,
            pool.shape[0] * pool.shape[4],
            heads,
            kv_heads,
            query.stride(0) if query is not None else 0,
            query.stride(1) if query is not None else 0,
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            rotation.cosine.stride(0) if rotation else 0,
            keys.stride(0),
            keys.stride(1),
            keys.stride(2),
            HEAD_DIM=head_dim,
            DIM_TILE=power_of_two(head_dim),
            HALF=half,
            HALF_TILE=power_of_two(half),
            BLOCK_SIZE=pool.shape[4],
            HEADS=HEADS_PER_PROGRAM,
            num_warps=1,
        )
