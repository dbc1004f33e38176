"""Paged attention in C++ and in plain torch, both against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import LAYER, PagedCase, paged_case, relative_error

from kernels import RaggedBatch, cpu, reference
from kernels.cpu import library
from kernels.cpu.memory import huge_zeros

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
PART = 256
"""Keys of a decode part (src/decode.h)."""
KEY_TILE = 64
"""Keys of a prefill tile (src/prefill.h)."""


def check(case: PagedCase, bound: float, **options: object) -> None:
    scale = case.query.shape[-1] ** -0.5
    exact = case.exact(scale, **options)  # type: ignore[arg-type]
    for backend in (cpu, reference):
        case.batch.step_cache.clear()
        actual = backend.paged_attention(case.query, case.pool, LAYER, case.batch, scale=scale, **options)  # type: ignore[arg-type]
        assert actual.dtype == case.query.dtype
        assert relative_error(actual, exact) < bound, backend.__name__


@st.composite
def cases(draw: st.DrawFn) -> PagedCase:
    """Contexts at 1, at the edges of blocks, parts and tiles and one beside them; decode and chunks mixed."""
    block_size = draw(st.sampled_from([1, 7, 16, 32, 256]))
    edges = [block_size, 2 * block_size, KEY_TILE, PART, 2 * PART]
    contexts = st.sampled_from(sorted({max(1, edge + beside) for edge in edges for beside in (-1, 0, 1)}))
    sequences = []
    for context in draw(st.lists(contexts, min_size=1, max_size=4)):
        sequences.append((draw(st.one_of(st.just(1), st.integers(1, min(context, 40)))), context))
    return paged_case(
        sequences,
        block_size,
        draw(st.sampled_from([(9, 3), (33, 3), (8, 8), (8, 1), (7, 1), (16, 1), (10, 2)])),
        draw(st.sampled_from([32, 64, 80, 96, 128, 256])),
        kv_dtype=draw(st.sampled_from(list(BOUNDS))),
        query_dtype=draw(st.sampled_from([None, torch.float32])),
        seed=draw(st.integers(0, 2**16)),
        shared_blocks=draw(st.integers(0, 2)),
    )


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(
    case=cases(),
    window=st.sampled_from([None, 1, 15, 16, 17, 64, 300]),
    soft_cap=st.sampled_from([None, None, 2.0, 50.0]),
    with_sinks=st.booleans(),
)
def test_equals_float64_on_any_mixed_batch(
    case: PagedCase, window: int | None, soft_cap: float | None, with_sinks: bool
) -> None:
    heads = case.query.shape[1]
    sinks = torch.linspace(-2, 2, heads) if with_sinks else None
    check(case, BOUNDS[case.query.dtype], window=window, soft_cap=soft_cap, sinks=sinks)


@pytest.mark.unit
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 160, 192, 256])
def test_the_library_itself_serves_these_head_dims(head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is taken away: what is computed must come from the library."""
    monkeypatch.delattr(reference, "paged_attention")
    case = paged_case([(1, 300), (70, 130), (1, 1)], 16, (6, 2), head_dim)
    actual = cpu.paged_attention(case.query, case.pool, LAYER, case.batch, scale=0.1)
    assert relative_error(actual, case.exact(0.1)) < 1e-5


@pytest.mark.unit
@pytest.mark.parametrize("head_dim", [24, 36, 264])
def test_other_head_dims_are_right_as_well(head_dim: int) -> None:
    check(paged_case([(1, 40), (5, 20)], 16, (4, 2), head_dim), 1e-5)


@pytest.mark.unit
def test_float64_goes_to_the_reference() -> None:
    check(paged_case([(1, 40), (5, 20)], 16, (4, 2), 32, torch.float64), 1e-12)


@pytest.mark.unit
def test_a_long_chunk_over_a_cached_prefix(threads: int) -> None:
    """A chunk of 500 behind 777 cached tokens: several tasks per KV head, tiles that no row of a task sees."""
    case = paged_case([(500, 1277), (1, 2000), (2, 2)], 16, (9, 3), 64)
    check(case, 1e-5)
    check(case, 1e-5, window=100)


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sequence_gets_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    """Alone and in company, on one thread and on two: parts are cut at fixed keys, whoever computes them."""
    sequences = [(1, 700), (60, 300), (1, 17), (3, 513)]
    whole = paged_case(sequences, 16, (9, 3), 64, dtype)
    together = cpu.paged_attention(whole.query, whole.pool, LAYER, whole.batch, scale=0.125)
    before, start = torch.get_num_threads(), 0
    torch.set_num_threads(1)
    try:
        for index, (length, context) in enumerate(sequences):
            table = whole.batch.block_tables[index : index + 1]
            alone = RaggedBatch.of([length], [context], table)
            query = whole.query[start : start + length]
            assert torch.equal(
                cpu.paged_attention(query, whole.pool, LAYER, alone, scale=0.125), together[start : start + length]
            )
            start += length
    finally:
        torch.set_num_threads(before)


@pytest.mark.unit
def test_a_prompt_gets_the_same_bits_however_it_is_cut() -> None:
    """200 tokens in one chunk, and as 77 + 123: key tiles begin at fixed keys."""
    case = paged_case([(200, 200)], 16, (4, 2), 64)
    whole = cpu.paged_attention(case.query, case.pool, LAYER, case.batch, scale=0.125)
    tables = case.batch.block_tables
    first = cpu.paged_attention(case.query[:77], case.pool, LAYER, RaggedBatch.of([77], [77], tables), scale=0.125)
    rest = cpu.paged_attention(case.query[77:], case.pool, LAYER, RaggedBatch.of([123], [200], tables), scale=0.125)
    assert torch.equal(torch.cat((first, rest)), whole)


@pytest.mark.unit
def test_large_scores_do_not_overflow() -> None:
    """Scores of some thousands: the softmax is over differences from the largest."""
    case = paged_case([(1, 300), (20, 40)], 16, (4, 2), 64)
    case.query.mul_(1000)
    check(case, 1e-5)


@pytest.mark.unit
def test_a_pool_of_more_than_two_billion_elements() -> None:
    """2^31 elements lie before the last blocks; memory is touched only where K and V are written.

    One block holds 2 layers * 2 * 2 heads * 16 tokens * 64 dims = 8,192 elements; 2^31 / 8,192 = 262,144 blocks.
    """
    dims = (262_144 + 8, 2, 2, 2, 16, 64)
    elements = torch.Size(dims).numel()
    assert elements > 2**31
    pool = huge_zeros(elements * 2).view(torch.bfloat16).view(dims)
    table = [262_150, 3, 262_151]
    own = torch.randn(2, 40, 2, 64).bfloat16()
    slots = torch.tensor([table[p // 16] * 16 + p % 16 for p in range(40)])
    cpu.write_kv(pool, LAYER, own[0], own[1], slots)
    batch = RaggedBatch.of([1, 8], [40, 40], [table, table])
    query = torch.randn(9, 4, 64)
    case = PagedCase(query, pool, batch, [own, own])
    actual = cpu.paged_attention(query, pool, LAYER, batch, scale=0.125)
    assert relative_error(actual, case.exact(0.125)) < 1e-5


@pytest.mark.unit
def test_a_table_that_names_no_block_is_refused() -> None:
    case = paged_case([(1, 20)], 16, (4, 2), 64)
    for outside in (case.pool.shape[0], -1):
        tables = case.batch.block_tables.clone()
        tables[0, 1] = outside
        with pytest.raises(IndexError, match="outside the pool"):
            cpu.paged_attention(case.query, case.pool, LAYER, RaggedBatch.of([1], [20], tables), scale=1.0)


@pytest.mark.unit
def test_the_library_runs_here() -> None:
    assert library.why_not() is None
