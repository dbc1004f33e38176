"""Steps over a poisoned pool, and what attention over them must give, in float64.

Every slot that no sequence of the batch may read holds NaN: the null block, blocks in no table, other layers, and the
tail of a last block beyond the context. Block tables are shuffled; sequences may share a prefix.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import PoolShape, RaggedBatch

LAYERS, LAYER = 2, 1


@dataclass(frozen=True)
class PagedCase:
    """history[i] is the float64 [2, context, kv_heads, head_dim] KV of sequence i, as stored and scaled."""

    query: torch.Tensor
    pool: torch.Tensor
    batch: RaggedBatch
    history: list[torch.Tensor]
    kv_scales: torch.Tensor | None

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1]) ** -0.5


def paged_case(
    sequences: Sequence[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    *,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    shared_blocks: int = 0,
    poison: float = math.nan,
    device: str = "cpu",
    seed: int = 0,
) -> PagedCase:
    """Sequences given as (query tokens, context); their first `shared_blocks` full blocks are one prefix of all."""
    generator = torch.Generator().manual_seed(seed)
    num_heads, kv_heads = heads
    kv_dtype = kv_dtype or dtype
    kv_scales = torch.rand(2, kv_heads, generator=generator) + 0.5 if kv_dtype.itemsize == 1 else None
    table_lengths = [-(-context // block_size) for _, context in sequences]
    shape = PoolShape(sum(table_lengths) + 3, LAYERS, kv_heads, block_size, head_dim, kv_dtype)
    pool = torch.full(shape.dims, poison).to(kv_dtype)
    free = list(range(1, shape.num_blocks + 1))
    random.Random(seed).shuffle(free)
    prefix = [free.pop() for _ in range(shared_blocks)]
    common = torch.randn(shared_blocks, 2, kv_heads, block_size, head_dim, generator=generator)
    pool[prefix, LAYER] = common.to(kv_dtype)

    tables, history = [], []
    for (_, context), length in zip(sequences, table_lengths, strict=True):
        shared = min(shared_blocks, context // block_size)
        table = prefix[:shared] + [free.pop() for _ in range(length - shared)]
        positions = torch.arange(context)
        blocks, offsets = torch.tensor(table)[positions // block_size], positions % block_size
        stored = torch.randn(context, 2, kv_heads, head_dim, generator=generator).to(kv_dtype)
        own = positions >= shared * block_size
        pool[blocks[own], LAYER, :, :, offsets[own]] = stored[own]
        kept = pool[blocks, LAYER, :, :, offsets].double().transpose(0, 1)
        history.append(kept if kv_scales is None else kept * kv_scales.double()[:, None, :, None])
        tables.append(table)

    query_lengths, contexts = zip(*sequences, strict=True)
    query = torch.randn(sum(query_lengths), num_heads, head_dim, generator=generator).to(dtype)
    return PagedCase(
        query.to(device),
        pool.to(device),
        RaggedBatch.of(query_lengths, contexts, tables, device),
        history,
        None if kv_scales is None else kv_scales.to(device),
    )


def attended(
    case: PagedCase, window: int | None = None, soft_cap: float | None = None, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """float64 [tokens, heads, head_dim] on the CPU: softmax over the visible keys, sequence by sequence."""
    outputs = []
    queries = case.query.double().cpu().split(case.batch.host_query_lengths)
    for query, (keys, values) in zip(queries, case.history, strict=True):
        length, num_heads, _ = query.shape
        context, kv_heads, _ = keys.shape
        of_head = torch.arange(num_heads) // (num_heads // kv_heads)
        scores = torch.einsum("qhd,khd->hqk", query, keys[:, of_head]) * case.scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        positions, at = torch.arange(context - length, context)[:, None], torch.arange(context)
        hidden = at > positions
        if window is not None:
            hidden |= at <= positions - window
        scores = scores.masked_fill(hidden, -math.inf)
        if sinks is not None:
            scores = torch.cat((scores, sinks.double().cpu()[:, None, None].expand(-1, length, 1)), -1)
        weights = scores.softmax(-1)[..., :context]
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values[:, of_head]))
    return torch.cat(outputs)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest magnitude; NaN stays NaN, which fails every bound."""
    return float((actual.double().cpu() - expected).abs().max() / expected.abs().max())
