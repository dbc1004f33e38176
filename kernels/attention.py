"""Paged attention in plain torch: gather through the block table, then scaled dot-product attention.

Sequences with one query token are one padded batch; a prefill chunk is a batch of its own. Query heads that share a KV
head are the rows of one matrix product.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention_plan import ChunkPlan, DecodePlan, chunk_mask, plan_attention
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
) -> torch.Tensor:
    """Causal attention of a step's tokens over the keys in their sequences' block tables.

    query  [tokens, heads, head_dim], in the pool's dtype
    pool   [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim], contiguous; keys come from here only, so the
           step's own K and V must have been written before
    returns [tokens, heads, head_dim]

    Head h reads KV head `h // (heads / kv_heads)`. Scores are `scale * q.k`, then `soft_cap * tanh(score / soft_cap)`
    when given. A query at position p sees the keys in (p - window, p], or all up to p without a window. Slots it does
    not see never reach its output, whatever they hold (NaN and inf included).

    Raises ValueError when heads are no multiple of kv_heads, shapes or dtypes disagree, a table is too short, or window
    or soft_cap is not positive.
    """
    _check(query, pool, batch, soft_cap)
    plan = plan_attention(batch, pool, window, query.dtype)
    if plan.decode is not None and not plan.chunks:
        return _decode(query, pool, layer, plan.decode, scale, soft_cap)
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    if plan.decode is not None:
        one_each = query.index_select(0, plan.decode.tokens)
        output.index_copy_(0, plan.decode.tokens, _decode(one_each, pool, layer, plan.decode, scale, soft_cap))
    for chunk in plan.chunks:
        tokens = slice(chunk.token_start, chunk.token_start + chunk.num_tokens)
        output[tokens] = _chunk(query[tokens], pool, layer, chunk, scale, soft_cap)
    return output


def _check(query: torch.Tensor, pool: torch.Tensor, batch: RaggedBatch, soft_cap: float | None) -> None:
    tokens, heads, head_dim = query.shape
    if heads % pool.shape[3]:
        raise ValueError(f"{heads} query heads cannot share {pool.shape[3]} KV heads evenly")
    if head_dim != pool.shape[5]:
        raise ValueError(f"queries have head dim {head_dim}, the pool {pool.shape[5]}")
    if query.dtype != pool.dtype:
        raise ValueError(f"queries are {query.dtype}, the pool is {pool.dtype}")
    if tokens != batch.num_tokens:
        raise ValueError(f"{tokens} queries for a batch of {batch.num_tokens} tokens")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap must be positive, got {soft_cap}")


def _gather(pool: torch.Tensor, layer: int, rows: torch.Tensor) -> torch.Tensor:
    """The rows of this layer, [len(rows), block_size * head_dim]: a copy."""
    _, _, _, kv_heads, block_size, head_dim = pool.shape
    return pool.view(-1, block_size * head_dim)[layer * 2 * kv_heads :].index_select(0, rows)


def _decode(
    query: torch.Tensor, pool: torch.Tensor, layer: int, plan: DecodePlan, scale: float, soft_cap: float | None
) -> torch.Tensor:
    sequences, heads, head_dim = query.shape
    kv_heads = pool.shape[3]
    gathered = _gather(pool, layer, plan.rows).view(-1, head_dim).index_fill_(0, plan.hidden, 0)
    keys, values = gathered.view(2, sequences, kv_heads, -1, head_dim)
    grouped = query.view(sequences, kv_heads, heads // kv_heads, head_dim)
    return _attend(grouped, keys, values, plan.mask, scale, soft_cap).reshape(sequences, heads, head_dim)


def _chunk(
    query: torch.Tensor, pool: torch.Tensor, layer: int, plan: ChunkPlan, scale: float, soft_cap: float | None
) -> torch.Tensor:
    tokens, heads, head_dim = query.shape
    kv_heads = pool.shape[3]
    gathered = _gather(pool, layer, plan.rows).view(2, kv_heads, 1, -1, head_dim)
    group = heads // kv_heads
    keys, values = gathered.narrow(3, plan.skip, plan.num_keys).expand(-1, -1, group, -1, -1)
    grouped = query.view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    return _attend(grouped, keys, values, plan.mask, scale, soft_cap).permute(2, 0, 1, 3).reshape(query.shape)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """query [.., queries, head_dim], keys and values [.., keys, head_dim], mask None for plainly causal."""
    if soft_cap is None:
        return scaled_dot_product_attention(query, keys, values, mask, is_causal=mask is None, scale=scale)
    if mask is None:
        mask = chunk_mask(query.shape[-2], query.shape[-2], 0, None, query.dtype).to(query.device)
    # Half precision would round the capped scores, and torch's batched half products are slow on CPU.
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ keys.to(wide).transpose(-1, -2)
    scores = torch.tanh(scores * (scale / soft_cap)) * soft_cap + mask
    return (scores.softmax(-1) @ values.to(wide)).to(query.dtype)
