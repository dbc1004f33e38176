"""Paged attention by Triton: the launcher."""

import math

import torch

from kernels.checks import FP8
from kernels.ragged import RaggedBatch
from kernels.triton.attention_kernels import paged_attention_kernel
from kernels.triton.attention_plan import Heads, plan_attention
from kernels.triton.combine_kernel import combine_splits_kernel
from kernels.triton.device import check_format, launching_on

LARGEST_INT32 = 2**31 - 1
COMBINED_AT_ONCE = 16
"""Splits that are read together, however few there are: the order of their sums is then the same in every batch."""
PRODUCTS = {torch.float32: "ieee", torch.float16: "tf32", torch.bfloat16: "tf32"}
"""Types of queries, and how their products are computed: float32 exactly, where the default would round to tf32."""


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
    """Causal attention of a step's tokens over the keys in their sequences' block tables, decode and chunks alike.

    query      [tokens, heads, head_dim] by strides, last dimension contiguous; fp32, fp16 or bf16
    pool       [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim] by strides, last dimension contiguous; in
               the query's dtype, or fp8, or fp16 or bf16 under fp32 queries
    sinks      float32 [heads], a logit per head that takes its share of the softmax and has no value
    kv_scales  float32 [2, kv_heads], with an fp8 pool: K is what is stored times kv_scales[0], V times kv_scales[1]
    returns    [tokens, heads, head_dim]

    Scores, window, soft cap and slots not seen are as in `kernels.paged_attention`. A sequence whose context length on
    the device is 0 (a padding row of a captured graph) gets zeros. The number of splits is taken from the batch's host
    lengths; longer contexts on the device are served right, only less evenly. With
    `torch.use_deterministic_algorithms(True)` the length of a split is constant, and a decoded token's output has the
    same bits in whatever batch it is computed.

    Arguments are those that `kernels.paged_attention` lets through. Raises ValueError for other types of queries or
    strides; RuntimeError when the device cannot convert the pool's format.
    """
    check_format(pool.dtype, pool.device)
    if query.dtype not in PRODUCTS:
        raise ValueError(f"queries are {query.dtype}; these kernels multiply {', '.join(map(str, PRODUCTS))}")
    if query.stride(2) != 1 or pool.stride(5) != 1:
        raise ValueError("the last dimension of queries and of the pool must be contiguous")
    _, num_heads, head_dim = query.shape
    kv_heads, block_size = pool.shape[3], pool.shape[4]
    # Inside a token and inside a block, offsets have 32 bits: 64 would cost the registers that tiles are sized by.
    if (num_heads - 1) * query.stride(1) > LARGEST_INT32:
        query = query.contiguous()
    if (block_size - 1) * pool.stride(4) > LARGEST_INT32:
        raise ValueError(f"tokens of a block lie {pool.stride(4)} elements apart, too far for offsets of 32 bits")
    heads = Heads(kv_heads, num_heads // kv_heads, head_dim)
    scales = kv_scales.contiguous() if kv_scales is not None and pool.dtype in FP8 else None
    sinks = None if sinks is None else sinks.contiguous()
    plan = plan_attention(batch, heads, window, query.dtype, pool.dtype)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    keys, values = pool[:, layer, 0], pool[:, layer, 1]
    score_scale = scale * math.log2(math.e) if soft_cap is None else scale
    with launching_on(pool):
        for work in (plan.short, plan.long):
            if work is None:
                continue
            partial, partial_lse = work.split_results(heads, query.device) if work.combined else (None, None)
            paged_attention_kernel[work.num_items * kv_heads, work.num_splits](
                output,
                partial,
                partial_lse,
                query,
                keys,
                values,
                batch.block_tables,
                batch.query_starts,
                batch.context_lengths,
                work.items,
                scales,
                sinks,
                score_scale,
                soft_cap,
                window,
                work.split_tiles,
                kv_heads,
                query.stride(0),
                query.stride(1),
                batch.block_tables.stride(0),
                keys.stride(0),
                keys.stride(1),
                keys.stride(2),
                GROUP=heads.group,
                HEAD_DIM=head_dim,
                DIM_TILE=heads.dim_tile,
                BLOCK_SIZE=block_size,
                ROWS=work.tiles.rows,
                KEYS=work.tiles.keys,
                SPLIT=work.combined,
                UNMASKED_TILES=work is plan.long and window is None and query.dtype != torch.float32,
                PRECISION=PRODUCTS[query.dtype],
                num_warps=work.tiles.warps,
                num_stages=work.tiles.stages,
            )
            if work.combined:
                combine_splits_kernel[work.num_items * kv_heads, work.most_rows](
                    output,
                    partial,
                    partial_lse,
                    batch.query_starts,
                    work.items,
                    scales,
                    sinks,
                    work.num_splits,
                    kv_heads,
                    GROUP=heads.group,
                    HEAD_DIM=head_dim,
                    DIM_TILE=heads.dim_tile,
                    ROWS=work.tiles.rows,
                    SPLITS=COMBINED_AT_ONCE,
                    num_warps=2,
                )
    return output
