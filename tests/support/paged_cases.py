"""Attention over a poisoned pool, and what it must give, in float64."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import PoolShape, RaggedBatch, reference

LAYERS, LAYER = 2, 1
POISON = (math.nan, math.inf, -math.inf)


@dataclass(frozen=True)
class PagedCase:
    """A step over a pool whose every slot that no sequence may read is poison."""

    query: torch.Tensor
    pool: torch.Tensor
    batch: RaggedBatch
    history: list[torch.Tensor]
    """[2, context, kv_heads, head_dim] of each sequence, as stored."""

    def exact(
        self,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[tokens, heads, head_dim] in float64, from each sequence's own K and V."""
        outputs, start = [], 0
        for length, (keys, values) in zip(self.batch.host_query_lengths, self.history, strict=True):
            query = self.query[start : start + length].double()
            group = query.shape[1] // keys.shape[1]
            wide_keys, wide_values = (side.double().repeat_interleave(group, 1) for side in (keys, values))
            scores = torch.einsum("thd,khd->htk", query, wide_keys) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            at = torch.arange(len(keys) - length, len(keys))[:, None]
            key = torch.arange(len(keys))[None]
            hidden = (key > at) | (key <= at - window if window is not None else False)
            scores = scores.masked_fill(hidden, -math.inf)
            extra = torch.full((*scores.shape[:2], 1), -math.inf, dtype=torch.float64)
            if sinks is not None:
                extra = sinks.double()[:, None, None].expand_as(extra)
            weights = torch.cat((scores, extra), -1).softmax(-1)[..., :-1]
            outputs.append(torch.einsum("htk,khd->thd", weights, wide_values))
            start += length
        return torch.cat(outputs)


def paged_case(
    sequences: Sequence[tuple[int, int]],
    block_size: int,
    heads: tuple[int, int],
    head_dim: int,
    kv_dtype: torch.dtype = torch.float32,
    query_dtype: torch.dtype | None = None,
    seed: int = 0,
    shared_blocks: int = 0,
) -> PagedCase:
    """Sequences as (query tokens, context); tables are shuffled, and begin with up to `shared_blocks` common blocks."""
    generator = torch.Generator().manual_seed(seed)
    table_blocks = [-(-context // block_size) for _, context in sequences]
    shape = PoolShape(sum(table_blocks) + 3, LAYERS, heads[1], block_size, head_dim, kv_dtype)
    pool = reference.allocate_pool(shape)
    flat = pool.view(-1)
    flat.copy_(torch.tensor(POISON, dtype=kv_dtype).repeat(-(-flat.numel() // len(POISON)))[: flat.numel()])
    free = list(range(1, shape.num_blocks + 1))
    random.Random(seed).shuffle(free)
    prefix_blocks = [free.pop() for _ in range(min(shared_blocks, *table_blocks))]
    prefix = torch.randn(2, len(prefix_blocks) * block_size, heads[1], head_dim, generator=generator).to(kv_dtype)
    tables, history = [], []
    for (_, context), blocks in zip(sequences, table_blocks, strict=True):
        own = torch.randn(2, context, heads[1], head_dim, generator=generator).to(kv_dtype)
        shared = min(len(prefix_blocks), context // block_size)
        own[:, : shared * block_size] = prefix[:, : shared * block_size]
        table = prefix_blocks[:shared] + [free.pop() for _ in range(blocks - shared)]
        slots = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(context)])
        reference.write_kv(pool, LAYER, own[0], own[1], slots)
        tables.append(table)
        history.append(own)
    lengths = [query for query, _ in sequences]
    batch = RaggedBatch.of(lengths, [context for _, context in sequences], tables)
    query = torch.randn(sum(lengths), heads[0], head_dim, generator=generator).to(query_dtype or kv_dtype)
    return PagedCase(query, pool, batch, history)


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference over the largest magnitude; NaN fails every bound."""
    error = float((actual.double() - exact).abs().max() / exact.abs().max())
    return math.inf if math.isnan(error) else error
