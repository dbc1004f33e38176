"""paged_attention against a float64 oracle that walks queries, heads and keys one by one.

Unless a test says otherwise every slot no sequence of the batch may read holds NaN, +inf or -inf: the null block,
blocks in no table, and the tail of a last block beyond the context.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import PoolShape, RaggedBatch, allocate_pool, paged_attention, write_kv

HEAD_PAIRS = [(28, 4), (12, 2), (33, 3), (8, 8), (8, 1)]
BLOCK_SIZES = [1, 7, 16, 256]
LAYERS, LAYER, HEAD_DIM = 2, 1, 8


@dataclass(frozen=True)
class Case:
    """A step over a poisoned pool. history[i] is the [2, context, kv_heads, head_dim] KV of sequence i, as stored."""

    query: torch.Tensor
    pool: torch.Tensor
    batch: RaggedBatch
    history: list[torch.Tensor]


def build(
    sequences: Sequence[tuple[int, int]],
    block_size: int,
    heads: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    shared_blocks: int = 0,
    poison: Sequence[float] = (math.nan, math.inf, -math.inf),
) -> Case:
    """Sequences given as (query tokens, context); the first `shared_blocks` full blocks are one prefix of all."""
    generator = torch.Generator().manual_seed(seed)
    num_heads, kv_heads = heads
    table_blocks = [-(-context // block_size) for _, context in sequences]
    shape = PoolShape(sum(table_blocks) + 3, LAYERS, kv_heads, block_size, HEAD_DIM, dtype)
    pool = allocate_pool(shape)
    flat = pool.view(-1)
    flat.copy_(torch.tensor(poison, dtype=dtype).repeat(-(-flat.numel() // len(poison)))[: flat.numel()])

    free = list(range(1, shape.num_blocks + 1))
    random.Random(seed).shuffle(free)
    prefix_blocks = [free.pop() for _ in range(shared_blocks)]
    prefix = torch.randn(2, shared_blocks * block_size, kv_heads, HEAD_DIM, generator=generator).to(dtype)
    tables, history = [], []
    for (_, context), blocks in zip(sequences, table_blocks, strict=True):
        own = torch.randn(2, context, kv_heads, HEAD_DIM, generator=generator).to(dtype)
        shared = min(shared_blocks, context // block_size)
        own[:, : shared * block_size] = prefix[:, : shared * block_size]
        table = prefix_blocks[:shared] + [free.pop() for _ in range(blocks - shared)]
        slots = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(context)])
        write_kv(pool, LAYER, own[0], own[1], slots)
        tables.append(table)
        history.append(own)
    query_lengths = [query for query, _ in sequences]
    batch = RaggedBatch.of(query_lengths, [context for _, context in sequences], tables)
    query = torch.randn(sum(query_lengths), num_heads, HEAD_DIM, generator=generator).to(dtype)
    return Case(query, pool, batch, history)


def oracle(case: Case, scale: float, window: int | None, soft_cap: float | None) -> np.ndarray:
    """[tokens, heads, head_dim] in float64: softmax over visible keys, query by query, head by head."""
    num_heads = case.query.shape[1]
    output = np.zeros(case.query.shape)
    token = 0
    for sequence, length in enumerate(case.batch.host_query_lengths):
        keys, values = case.history[sequence].double().numpy()
        group = num_heads // keys.shape[1]
        for position in range(len(keys) - length, len(keys)):
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(num_heads):
                query = case.query[token, head].double().numpy()
                scores = [float(query @ keys[p, head // group]) * scale for p in range(first, position + 1)]
                if soft_cap is not None:
                    scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                for p, weight in zip(range(first, position + 1), weights, strict=True):
                    output[token, head] += weight / sum(weights) * values[p, head // group]
            token += 1
    return output


def relative_error(actual: torch.Tensor, expected: np.ndarray) -> float:
    """Largest difference over the largest magnitude; NaN stays NaN, which fails every bound."""
    return float(np.abs(actual.double().numpy() - expected).max() / np.abs(expected).max())


def check(case: Case, bound: float, window: int | None = None, soft_cap: float | None = None) -> None:
    scale = HEAD_DIM**-0.5
    actual = paged_attention(case.query, case.pool, LAYER, case.batch, scale=scale, window=window, soft_cap=soft_cap)
    assert actual.dtype == case.query.dtype
    assert relative_error(actual, oracle(case, scale, window, soft_cap)) < bound


@st.composite
def sequences_of(draw: st.DrawFn, block_size: int) -> list[tuple[int, int]]:
    """Up to 4 sequences: contexts at 1, at block edges and one beside them, or long; queries decode or chunks."""
    edges = [1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1, 3 * block_size, 90]
    contexts = draw(st.lists(st.sampled_from([edge for edge in edges if 1 <= edge <= 300]), min_size=1, max_size=4))
    return [(draw(st.one_of(st.just(1), st.integers(1, min(context, 12)))), context) for context in contexts]


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_the_oracle_on_any_mixed_batch(data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from(BLOCK_SIZES))
    case = build(
        data.draw(sequences_of(block_size)),
        block_size,
        data.draw(st.sampled_from(HEAD_PAIRS)),
        seed=data.draw(st.integers(0, 2**16)),
        shared_blocks=data.draw(st.integers(0, 1)),
    )
    window = data.draw(st.sampled_from([None, 1, 15, 16, 17]))
    check(case, 1e-5, window, data.draw(st.sampled_from([None, 2.0])))


@pytest.mark.unit
@pytest.mark.parametrize("heads", HEAD_PAIRS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_other_dtypes(heads: tuple[int, int], dtype: torch.dtype, bound: float) -> None:
    case = build([(1, 33), (5, 40), (9, 9), (1, 1), (1, 16)], 16, heads, dtype)
    check(case, bound)
    check(case, bound, window=7, soft_cap=3.0)


@pytest.mark.unit
@pytest.mark.parametrize("heads", [(3, 2), (33, 2)])
def test_b81_heads_that_do_not_divide_are_refused(heads: tuple[int, int]) -> None:
    case = build([(1, 5)], 4, heads)
    with pytest.raises(ValueError, match=f"{heads[0]} query heads cannot share {heads[1]} KV heads"):
        paged_attention(case.query, case.pool, LAYER, case.batch, scale=1.0)


@pytest.mark.unit
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("chunk", [1, 3])
def test_b82_what_unused_slots_hold_does_not_matter(poison: float, chunk: int) -> None:
    """Lengths 1..2 * 7 + 1: a pool full of poison gives the very bits of a zero-filled one."""
    for context in range(chunk, 2 * 7 + 2):
        sequences = [(chunk, context), (1, 15)]
        dirty, clean = (build(sequences, 7, (8, 2), poison=[fill]) for fill in (poison, 0.0))
        outputs = [paged_attention(case.query, case.pool, LAYER, case.batch, scale=0.3) for case in (dirty, clean)]
        assert torch.equal(*outputs)


@pytest.mark.unit
@pytest.mark.parametrize("window", [1, 15, 16, 17])
@pytest.mark.parametrize("block_size", [7, 16])
def test_b86_window_at_every_length(window: int, block_size: int) -> None:
    """Decode at lengths 1..64. A slot the window has left behind is overwritten with NaN: it may have been freed."""
    sequences = [(1, context) for context in range(1, 65)]
    case = build(sequences, block_size, (4, 2))
    for sequence, (_, context) in enumerate(sequences):
        for position in range(max(0, context - window)):
            block = int(case.batch.block_tables[sequence, position // block_size])
            case.pool[block, :, :, :, position % block_size] = math.nan
    check(case, 1e-5, window)


@pytest.mark.unit
@pytest.mark.parametrize("window", [1, 15, 16, 17])
def test_b86_blocks_behind_a_window_are_never_read(window: int) -> None:
    """Null entries for what slid out: a chunk of 4 ending at 60 reads keys from 60 - 4 - window + 1 on."""
    case = build([(4, 60), (1, 60)], 8, (4, 2))
    first_keys = (60 - 4 - window + 1, 60 - window)
    expected = oracle(case, 0.5, window, None)
    for sequence, first_key in enumerate(first_keys):
        case.batch.block_tables[sequence, : first_key // 8] = 0
    actual = paged_attention(case.query, case.pool, LAYER, case.batch, scale=0.5, window=window)
    assert relative_error(actual, expected) < 1e-5


@pytest.mark.unit
def test_a_window_of_the_wrong_width_is_told_apart() -> None:
    case = build([(1, 40), (6, 40)], 16, (4, 2))
    actual = paged_attention(case.query, case.pool, LAYER, case.batch, scale=1.0, window=16)
    assert relative_error(actual, oracle(case, 1.0, 16, None)) < 1e-5
    for wrong in (15, 17, None):
        assert relative_error(actual, oracle(case, 1.0, wrong, None)) > 1e-3


@pytest.mark.unit
def test_one_batch_serves_every_layer() -> None:
    """The plan is made for layer 0's rows and kept: a later layer must not see an earlier layer's keys."""
    case = build([(1, 9), (4, 9)], 4, (4, 2), poison=[0.5])
    first = paged_attention(case.query, case.pool, 0, case.batch, scale=1.0)
    assert torch.equal(first, torch.full_like(first, 0.5))
    check(case, 1e-5)


@pytest.mark.unit
def test_a_query_whose_own_kv_went_to_the_null_block_reads_the_table() -> None:
    """A prompt of 8 found whole (two blocks of 4): its last token runs with context 8 and writes into block 0."""
    case = build([(1, 8)], 4, (2, 1))
    expected = oracle(case, 1.0, None, None)
    junk = torch.full((1, 1, HEAD_DIM), 1e3)
    write_kv(case.pool, LAYER, junk, junk, torch.tensor([3]))
    actual = paged_attention(case.query, case.pool, LAYER, case.batch, scale=1.0)
    assert relative_error(actual, expected) < 1e-5


@pytest.mark.unit
def test_a_query_may_be_a_view_of_fused_projections() -> None:
    case = build([(1, 8), (3, 5)], 4, (4, 2))
    fused = torch.randn(4, 4 + 2 + 2, HEAD_DIM)
    view = fused[:, :4]
    whole = paged_attention(view.clone(), case.pool, LAYER, case.batch, scale=1.0)
    assert torch.equal(paged_attention(view, case.pool, LAYER, case.batch, scale=1.0), whole)


@pytest.mark.unit
def test_bad_arguments_are_named() -> None:
    case = build([(1, 8)], 4, (2, 1))

    def attend(query: torch.Tensor = case.query, batch: RaggedBatch = case.batch, **options: Any) -> None:
        paged_attention(query, case.pool, LAYER, batch, scale=1.0, **options)

    with pytest.raises(ValueError, match="head dim 4, the pool 8"):
        attend(case.query[..., :4])
    with pytest.raises(ValueError, match=r"bfloat16, the pool is torch\.float32"):
        attend(case.query.bfloat16())
    with pytest.raises(ValueError, match="2 queries for a batch of 1"):
        attend(case.query.repeat(2, 1, 1))
    with pytest.raises(ValueError, match="context of 9 tokens does not fit block tables of 2 blocks of 4"):
        attend(batch=RaggedBatch.of([1], [9], [[1, 2]]))
    with pytest.raises(ValueError, match="window"):
        attend(window=0)
    with pytest.raises(ValueError, match="soft_cap"):
        attend(soft_cap=0.0)
    with pytest.raises(ValueError, match=r"sinks must be float32 \[2\]"):
        attend(sinks=torch.zeros(3))
    quarter = case.pool.to(torch.float8_e5m2)
    with pytest.raises(ValueError, match=r"kv_scales, float32 \[2, 1\]"):
        paged_attention(case.query, quarter, LAYER, case.batch, scale=1.0)


@pytest.mark.unit
def test_ragged_batch_describes_its_sequences() -> None:
    batch = RaggedBatch.of([1, 3], [6, 7], [[9, 2], [5]])
    assert batch.query_starts.tolist() == [0, 1, 4]
    assert batch.block_tables.tolist() == [[9, 2], [5, 0]]
    assert (batch.num_tokens, batch.num_sequences) == (4, 2)
    for arguments in (([1], [1, 2], [[1]]), ([0], [1], [[1]]), ([3], [2], [[1]])):
        with pytest.raises(ValueError, match=r"sequence|do not describe"):
            RaggedBatch.of(*arguments)
    with pytest.raises(ValueError, match="int32"):
        RaggedBatch.of([1], [1], torch.ones(1, 1))
