"""Paged attention in plain torch: gather through the block table, then scaled dot-product attention.

Sequences with one query token are one padded batch; a prefill chunk is a batch of its own. Query heads that share a KV
head are the rows of one matrix product.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.checks import FP8, check_contiguous
from kernels.ragged import RaggedBatch
from kernels.reference.attention_plan import ChunkPlan, DecodePlan, chunk_mask, plan_attention


class _Stored(NamedTuple):
    """Where one layer's KV lies, and what turns a score into a weight."""

    pool: torch.Tensor
    layer: int
    kv_scales: torch.Tensor | None
    scale: float
    soft_cap: float | None
    sinks: torch.Tensor | None
    """float32 [heads]"""


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
    """`kernels.paged_attention`; ValueError when the pool is not contiguous."""
    check_contiguous(pool)
    plan = plan_attention(batch, pool, window, query.dtype)
    stored = _Stored(pool, layer, kv_scales, scale, soft_cap, sinks)
    if plan.decode is not None and not plan.chunks:
        return _decode(query, stored, plan.decode)
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    if plan.decode is not None:
        one_each = query.index_select(0, plan.decode.tokens)
        output.index_copy_(0, plan.decode.tokens, _decode(one_each, stored, plan.decode))
    for chunk in plan.chunks:
        tokens = slice(chunk.token_start, chunk.token_start + chunk.num_tokens)
        output[tokens] = _chunk(query[tokens], stored, chunk)
    return output


def _gather(stored: _Stored, rows: torch.Tensor) -> torch.Tensor:
    """The rows of this layer, [len(rows), block_size * head_dim]: a copy."""
    pool = stored.pool
    _, _, _, kv_heads, block_size, head_dim = pool.shape
    # torch has no index_select over 8-bit floats.
    seen = pool.view(torch.uint8) if pool.dtype in FP8 else pool
    gathered = seen.view(-1, block_size * head_dim)[stored.layer * 2 * kv_heads :].index_select(0, rows)
    return gathered.view(pool.dtype)


def _decode(query: torch.Tensor, stored: _Stored, plan: DecodePlan) -> torch.Tensor:
    sequences, heads, head_dim = query.shape
    kv_heads = stored.pool.shape[3]
    gathered = _gather(stored, plan.rows).view(-1, head_dim).to(query.dtype).index_fill_(0, plan.hidden, 0)
    both = gathered.view(2, sequences, kv_heads, -1, head_dim)
    if stored.kv_scales is not None:
        both = both * stored.kv_scales[:, None, :, None, None].to(query.dtype)
    grouped = query.view(sequences, kv_heads, heads // kv_heads, head_dim)
    sinks = None if stored.sinks is None else stored.sinks.view(kv_heads, -1, 1)
    return _attend(grouped, both[0], both[1], plan.mask, stored, sinks).reshape(sequences, heads, head_dim)


def _chunk(query: torch.Tensor, stored: _Stored, plan: ChunkPlan) -> torch.Tensor:
    tokens, heads, head_dim = query.shape
    kv_heads = stored.pool.shape[3]
    gathered = _gather(stored, plan.rows).to(query.dtype).view(2, kv_heads, 1, -1, head_dim)
    if stored.kv_scales is not None:
        gathered = gathered * stored.kv_scales[:, :, None, None, None].to(query.dtype)
    group = heads // kv_heads
    keys, values = gathered.narrow(3, plan.skip, plan.num_keys).expand(-1, -1, group, -1, -1)
    grouped = query.view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    sinks = None if stored.sinks is None else stored.sinks.view(kv_heads, group, 1, 1)
    return _attend(grouped, keys, values, plan.mask, stored, sinks).permute(2, 0, 1, 3).reshape(query.shape)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    stored: _Stored,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [.., queries, head_dim], keys and values [.., keys, head_dim], mask None for plainly causal.

    sinks, when given, broadcasts over [.., queries, 1].
    """
    if stored.soft_cap is None and sinks is None:
        return scaled_dot_product_attention(query, keys, values, mask, is_causal=mask is None, scale=stored.scale)
    if mask is None:
        mask = chunk_mask(query.shape[-2], query.shape[-2], 0, None, query.dtype).to(query.device)
    # Half precision would round the scores, and torch's batched half products are slow on CPU.
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ keys.to(wide).transpose(-1, -2) * stored.scale
    if stored.soft_cap is not None:
        scores = torch.tanh(scores / stored.soft_cap) * stored.soft_cap
    scores = scores + mask
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        with_sink = torch.cat((scores, sinks.to(wide).expand(*scores.shape[:-1], 1)), -1)
        weights = with_sink.softmax(-1)[..., :-1]
    return (weights @ values.to(wide)).to(query.dtype)
