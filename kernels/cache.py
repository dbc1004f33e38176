"""Operations on the paged KV pool.

Tensors may have any strides unless a docstring says otherwise; those of one call lie on one device. What is written in
place may share memory with no other argument. Threads may call at the same time, also on one pool as long as no slot or
block that one writes is read or written by another. Nothing is recorded for gradients, and lazily conjugated or negated
views are read as they lie in memory.
"""

from collections.abc import Sequence

import torch

from kernels.backend import operation
from kernels.block_pairs import block_ids
from kernels.checks import check_attention, check_layer, check_rotation, check_written, check_written_in_place
from kernels.pool import PoolShape
from kernels.ragged import RaggedBatch


def allocate_pool(shape: PoolShape, device: torch.device | str = "cpu") -> torch.Tensor:
    """A contiguous pool tensor of `shape.dims`, zeroed (on CPU, memory is only touched when first written)."""
    pool: torch.Tensor = operation("allocate_pool", torch.device(device).type)(shape, device)
    return pool


def paged_attention(
    query: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    batch: RaggedBatch,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    kv_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of a step's tokens over the keys in their sequences' block tables.

    query      [tokens, heads, head_dim], in the pool's dtype, or float32 over a pool of half precision
    pool       [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim]; keys come from here only, so the step's
               own K and V must have been written before
    sinks      float32 [heads], a logit per head that takes its share of the softmax and has no value
    kv_scales  float32 [2, kv_heads], with an fp8 pool: K is what is stored times kv_scales[0], V times kv_scales[1]
    returns    [tokens, heads, head_dim], in the query's dtype

    Head h reads KV head `h // (heads / kv_heads)`. Scores are `scale * q.k`, then `soft_cap * tanh(score / soft_cap)`
    when given. A query at position p sees the keys in (p - window, p], or all up to p without a window. Slots that no
    query of its sequence sees never reach its output, whatever they hold (NaN and inf included).

    A batch may serve several threads at the same time.

    Raises ValueError when heads are no multiple of kv_heads, shapes, dtypes or devices disagree, the pool has no such
    layer, a table is too short, window lies outside 1..2^31 - 1, or soft_cap is not positive and finite; on CPU,
    IndexError when a table names a block outside the pool, and MemoryError.
    """
    check_attention(query, pool, batch, window, soft_cap, sinks, kv_scales)
    check_layer(layer, pool)
    attended: torch.Tensor = operation("paged_attention", query.device.type)(
        query,
        pool,
        layer,
        batch,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        kv_scales=kv_scales,
    )
    return attended


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

    pool       [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim]
    key        [tokens, kv_heads, head_dim] of a floating-point dtype, as value
    slots      int64 [tokens], `block * block_size + offset`; slots of block 0 may repeat, all others must be distinct
    kv_scales  float32 [2, kv_heads], with an fp8 pool: stored is K / kv_scales[0] and V / kv_scales[1], held to the
               format's range

    Raises ValueError when shapes, dtypes or devices disagree or the pool has no such layer; a slot outside the pool is
    an IndexError on CPU.
    """
    check_written(pool, key, value, slots, kv_scales)
    check_layer(layer, pool)
    operation("write_kv", pool.device.type)(pool, layer, key, value, slots, kv_scales=kv_scales)


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

    query         [tokens, heads, head_dim], in the dtype of key, rotated in place; key itself is not changed
    cosine, sine  float32 [tokens, half], 2 * half <= head_dim: with a = x[i] and b = x[half + i], x[i] becomes
                  a cos - b sin and x[half + i] b cos + a sin; dimensions from 2 * half on stay

    Raises as `write_kv`, and ValueError when elements of query share memory.
    """
    check_written(pool, key, value, slots, kv_scales)
    check_layer(layer, pool)
    check_rotation(query, cosine, sine, key)
    check_written_in_place("query", query)
    operation("write_rotated_kv", pool.device.type)(
        pool, layer, query, key, value, slots, cosine, sine, kv_scales=kv_scales
    )


def copy_blocks(pool: torch.Tensor, sources: Sequence[int], destinations: Sequence[int]) -> None:
    """Copies whole blocks (all layers) inside the pool, in place: block destinations[i] becomes block sources[i].

    The copies of one call are unordered, so their meaning must not depend on an order. ValueError, with the pool
    untouched, when the two lists differ in length, a destination occurs twice or is also a source (a chain, or a copy
    onto itself), a block lies outside the pool, or the null block takes part; TypeError when an id is no int.
    """
    sources, destinations = block_ids("sources", sources), block_ids("destinations", destinations)
    operation("copy_blocks", pool.device.type)(pool, sources, destinations)


def zero_blocks(pool: torch.Tensor, blocks: Sequence[int]) -> None:
    """Zeroes whole blocks (all layers) of the pool.

    ValueError, nothing done, if one lies outside the pool; TypeError when an id is no int.
    """
    operation("zero_blocks", pool.device.type)(pool, block_ids("blocks", blocks))
