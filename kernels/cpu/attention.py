"""Paged attention by the C++ library."""

import ctypes

import torch

from kernels import reference
from kernels.checks import FP8
from kernels.cpu.library import (
    HEAD_DIM_MULTIPLE,
    MAX_GROUP,
    MAX_HEAD_DIM,
    POOL_TYPES,
    VALUE_TYPES,
    Attention,
    kernels,
    refuse,
)
from kernels.ragged import RaggedBatch


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
    """`kernels.paged_attention`; float64, e4m3fnuz and other head dims go to the reference.

    What a sequence gets has the same bits whatever else is in the batch, and with any number of threads. Threads may
    share a batch: what is kept in it is not written again.
    """
    key = (paged_attention, query.shape, query.dtype, pool.shape, pool.dtype, pool.stride(), scale, window, soft_cap)
    call = batch.step_cache.get(key)
    if call is None or sinks is not None or kv_scales is not None:
        if not _covered(query, pool):
            return reference.paged_attention(
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
        call = _call(query, pool, batch, scale, window, soft_cap, sinks, kv_scales)
        if sinks is None and kv_scales is None:
            batch.step_cache[key] = call
    arguments = Attention.from_buffer_copy(call[0])
    if query.stride(2) != 1 or query.stride(1) != query.shape[2]:
        query = query.contiguous()
    output = torch.empty(query.shape, dtype=query.dtype)
    arguments.query, arguments.token_stride = query.data_ptr(), query.stride(0)
    arguments.output = output.data_ptr()
    arguments.keys = pool.data_ptr() + layer * call[1]
    arguments.threads = torch.get_num_threads()
    refuse(kernels().attention(ctypes.byref(arguments)), "a block table names a block outside the pool")
    return output


def _covered(query: torch.Tensor, pool: torch.Tensor) -> bool:
    _, heads, head_dim = query.shape
    return (
        query.dtype in VALUE_TYPES
        and pool.dtype in POOL_TYPES
        and head_dim % HEAD_DIM_MULTIPLE[kernels().isa] == 0
        and head_dim <= MAX_HEAD_DIM
        and heads // pool.shape[3] <= MAX_GROUP
        and pool.stride(5) == 1
        and pool.stride(4) == head_dim
    )


def _call(
    query: torch.Tensor,
    pool: torch.Tensor,
    batch: RaggedBatch,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    kv_scales: torch.Tensor | None,
) -> tuple[Attention, int, tuple[torch.Tensor | None, ...]]:
    """The arguments that all layers share, bytes from layer to layer, and what the arguments point at."""
    starts, lengths = batch.query_starts.contiguous(), batch.context_lengths.contiguous()
    tables = batch.block_tables.contiguous()
    scales = kv_scales.contiguous() if kv_scales is not None and pool.dtype in FP8 else None
    sinks = None if sinks is None else sinks.contiguous()
    arguments = Attention(
        value_offset=pool.stride(2),
        block_stride=pool.stride(0),
        head_stride=pool.stride(3),
        num_blocks=pool.shape[0],
        query_type=VALUE_TYPES[query.dtype],
        pool_type=POOL_TYPES[pool.dtype],
        query_starts=starts.data_ptr(),
        context_lengths=lengths.data_ptr(),
        block_tables=tables.data_ptr(),
        tokens=query.shape[0],
        sequences=batch.num_sequences,
        table_width=tables.shape[1],
        heads=query.shape[1],
        kv_heads=pool.shape[3],
        head_dim=pool.shape[5],
        block_size=pool.shape[4],
        window=window or 0,
        scale=scale,
        soft_cap=soft_cap or 0.0,
        sinks=None if sinks is None else sinks.data_ptr(),
        kv_scales=None if scales is None else scales.data_ptr(),
    )
    return arguments, pool.stride(1) * pool.element_size(), (starts, lengths, tables, sinks, scales)
