"""Where the torch attention gathers its keys from, and what it masks: the same in every layer of a step.

The pool is seen as rows of one (block, layer, K or V, head): `[.., block_size * head_dim]`. One index_select over these
rows yields K and V as `[2, seqs, kv_heads, keys, head_dim]` without a further copy. The row of (block, layer, kv, head)
is `((block * num_layers + layer) * 2 + kv) * kv_heads + head`; plans hold the rows of layer 0, a layer adds an offset.
"""

from dataclasses import dataclass

import torch

from kernels.ragged import RaggedBatch


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """All sequences with one query token, padded to the same number of blocks."""

    tokens: torch.Tensor
    """int64 [seqs], each sequence's row in the step's tokens."""
    rows: torch.Tensor
    """int64 [2 * seqs * kv_heads * blocks], rows of layer 0 to gather."""
    mask: torch.Tensor
    """[seqs, 1, 1, keys] in the query's dtype, 0 where visible and -inf where not."""
    hidden: torch.Tensor
    """int64 [hidden rows of the gathered 2 * seqs * kv_heads * keys], to be zeroed: they may hold NaN."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One sequence with several query tokens. Keys [first_key, context) are gathered, every one of them written.

    table     | block 0 | block 1 | block 2 | block 3 |        window 5, block size 4, chunk of 3 tokens
    position   0       4       8      11   13
    gathered                 |skip|---------|                  skip + num_keys keys from whole blocks
    query                               |---|
    """

    token_start: int
    num_tokens: int
    rows: torch.Tensor
    """int64 [2 * kv_heads * blocks], rows of layer 0 to gather."""
    skip: int
    """Keys of the first gathered block that no query token of the chunk sees."""
    num_keys: int
    mask: torch.Tensor | None
    """[num_tokens, num_keys] in the query's dtype, 0 or -inf; None when it is plainly causal (no prefix, no window)."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    decode: DecodePlan | None
    chunks: tuple[ChunkPlan, ...]


def plan_attention(batch: RaggedBatch, pool: torch.Tensor, window: int | None, dtype: torch.dtype) -> AttentionPlan:
    """The plan of this batch on this pool, built at the first layer that asks and kept in the batch."""
    key = (plan_attention, pool.shape[1:], window, dtype)
    plan = batch.step_cache.get(key)
    if plan is None:
        plan = batch.step_cache[key] = _build(batch, pool, window, dtype)
    assert isinstance(plan, AttentionPlan)
    return plan


def _build(batch: RaggedBatch, pool: torch.Tensor, window: int | None, dtype: torch.dtype) -> AttentionPlan:
    decoding: list[tuple[int, int]] = []
    chunks: list[ChunkPlan] = []
    start = 0
    for sequence, length in enumerate(batch.host_query_lengths):
        if length == 1:
            decoding.append((sequence, start))
        else:
            chunks.append(_chunk(batch, pool, sequence, start, window, dtype))
        start += length
    return AttentionPlan(_decode(batch, pool, decoding, window, dtype) if decoding else None, tuple(chunks))


def _decode(
    batch: RaggedBatch, pool: torch.Tensor, decoding: list[tuple[int, int]], window: int | None, dtype: torch.dtype
) -> DecodePlan:
    device, block_size, kv_heads = pool.device, pool.shape[4], pool.shape[3]
    sequences = torch.tensor([sequence for sequence, _ in decoding])
    contexts = torch.tensor([batch.host_context_lengths[sequence] for sequence, _ in decoding])
    first_keys = (contexts - window).clamp_(min=0) if window else torch.zeros_like(contexts)
    first_blocks = first_keys // block_size
    ends = -(-contexts // block_size)
    num_blocks = int((ends - first_blocks).max())

    columns = first_blocks[:, None] + torch.arange(num_blocks)
    # A shorter sequence's surplus columns read whatever its table ends with: its keys there are hidden below.
    columns = columns.clamp_(max=batch.block_tables.shape[1] - 1).to(device)
    tables = batch.block_tables if len(decoding) == batch.num_sequences else batch.block_tables[sequences.to(device)]
    blocks = tables.long().gather(1, columns)

    positions = (first_blocks * block_size)[:, None] + torch.arange(num_blocks * block_size)
    visible = (positions >= first_keys[:, None]) & (positions < contexts[:, None])
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
    sequence, key = (~visible).nonzero(as_tuple=True)
    kv_and_sequence = torch.arange(2)[:, None] * len(decoding) + sequence
    head = kv_and_sequence[:, None] * kv_heads + torch.arange(kv_heads)[:, None]
    hidden = head * visible.shape[1] + key
    return DecodePlan(
        tokens=torch.tensor([token for _, token in decoding]).to(device),
        rows=_rows(blocks, pool),
        mask=mask[:, None, None].to(device),
        hidden=hidden.flatten().to(device),
    )


def _chunk(
    batch: RaggedBatch, pool: torch.Tensor, sequence: int, start: int, window: int | None, dtype: torch.dtype
) -> ChunkPlan:
    block_size = pool.shape[4]
    num_tokens, context = batch.host_query_lengths[sequence], batch.host_context_lengths[sequence]
    first_key = max(0, context - num_tokens - window + 1) if window else 0
    first_block = first_key // block_size
    blocks = batch.block_tables[sequence, first_block : -(-context // block_size)].long()
    plainly_causal = num_tokens == context and (window is None or window >= context)
    mask = None if plainly_causal else chunk_mask(num_tokens, context, first_key, window, dtype).to(pool.device)
    return ChunkPlan(
        token_start=start,
        num_tokens=num_tokens,
        rows=_rows(blocks[None], pool),
        skip=first_key - first_block * block_size,
        num_keys=context - first_key,
        mask=mask,
    )


def chunk_mask(num_tokens: int, context: int, first_key: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, context - first_key]: 0 where a chunk's query sees a key, -inf where not.

    The query at position p sees the keys in (p - window, p].
    """
    queries = torch.arange(context - num_tokens, context)[:, None]
    keys = torch.arange(first_key, context)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _rows(blocks: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
    """Rows of layer 0 for blocks [seqs, blocks], in the order [2, seqs, kv_heads, blocks], flattened."""
    _, num_layers, _, kv_heads, _, _ = pool.shape
    heads = torch.arange(2 * kv_heads, device=pool.device).view(2, 1, kv_heads, 1)
    return (blocks[None, :, None] * (num_layers * 2 * kv_heads) + heads).flatten()
