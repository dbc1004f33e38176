"""Paged attention in Triton, interpreted, against float64 over poisoned pools."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from poisoned_steps import LAYER, PagedCase, attended, paged_case, relative_error

import kernels
from kernels import PoolShape, RaggedBatch, allocate_host_pool
from kernels.triton import paged_attention
from kernels.triton.attention_plan import Heads

pytestmark = pytest.mark.interpret

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
MIXED = ((1, 33), (5, 40), (9, 9), (1, 1), (1, 16))


def attend(
    case: PagedCase,
    batch: RaggedBatch | None = None,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    return paged_attention(
        case.query,
        case.pool,
        LAYER,
        batch or case.batch,
        scale=case.scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        kv_scales=case.kv_scales,
    )


def check(case: PagedCase, window: int | None = None, soft_cap: float | None = None, sinks: bool = False) -> None:
    logits = torch.linspace(-1, 3, case.query.shape[1]) if sinks else None
    actual = attend(case, window=window, soft_cap=soft_cap, sinks=logits)
    assert actual.dtype == case.query.dtype
    assert relative_error(actual, attended(case, window, soft_cap, logits)) < BOUNDS[case.query.dtype]


@st.composite
def sequences_of(draw: st.DrawFn, block_size: int) -> list[tuple[int, int]]:
    """Up to 3 sequences with contexts of 1, at block and tile edges and one beside them, or splits long."""
    edges = {1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1, 63, 64, 65, 129, 300}
    contexts = draw(st.lists(st.sampled_from(sorted(edges - {0})), min_size=1, max_size=3))
    return [(draw(st.one_of(st.just(1), st.integers(1, min(context, 40)))), context) for context in contexts]


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_equals_float64_on_any_mixed_batch(data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([1, 7, 16, 32, 256]))
    dtype = data.draw(st.sampled_from(list(BOUNDS)))
    formats = [dtype, torch.float8_e4m3fn, torch.float8_e5m2] + ([torch.bfloat16] if dtype == torch.float32 else [])
    case = paged_case(
        data.draw(sequences_of(block_size)),
        data.draw(st.sampled_from([(2, 2), (8, 1), (6, 2), (7, 1), (33, 3), (28, 4)])),
        data.draw(st.sampled_from([32, 64, 80, 96])),
        block_size=block_size,
        dtype=dtype,
        kv_dtype=data.draw(st.sampled_from(formats)),
        shared_blocks=data.draw(st.integers(0, 1)),
        seed=data.draw(st.integers(0, 2**16)),
    )
    check(
        case,
        data.draw(st.sampled_from([None, 1, 15, 16, 17, 64])),
        data.draw(st.sampled_from([None, 2.0])),
        data.draw(st.booleans()),
    )


@pytest.mark.parametrize("head_dim", [32, 40, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_head_dims(head_dim: int, dtype: torch.dtype) -> None:
    check(paged_case(MIXED, (6, 2), head_dim, dtype=dtype))


@pytest.mark.parametrize("group", [*range(1, 17), 71])
def test_b81_group_sizes(group: int) -> None:
    """71 rows of one decoded token are two tiles of 64 in bf16 and five of 16 in fp32."""
    for dtype in (torch.float32, torch.bfloat16):
        check(paged_case([(1, 20), (3, 20)], (2 * group, 2), 32, dtype=dtype))


@pytest.mark.parametrize("block_size", [1, 2, 3, 7, 8, 16, 48, 64, 128, 256])
def test_block_sizes(block_size: int) -> None:
    check(paged_case([(1, 200), (20, 150), (1, block_size)], (4, 2), 32, block_size=block_size))


@pytest.mark.parametrize("heads", [(3, 2), (33, 2)])
def test_b81_heads_that_do_not_divide_are_refused(heads: tuple[int, int]) -> None:
    case = paged_case([(1, 5)], heads, 32)
    with pytest.raises(ValueError, match=f"{heads[0]} query heads cannot share {heads[1]} KV heads"):
        kernels.paged_attention(case.query, case.pool, LAYER, case.batch, scale=case.scale)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("window", [None, 5])
def test_b82_what_unused_slots_hold_does_not_matter(poison: float, window: int | None) -> None:
    """Lengths 1 to 2 * 7 + 1: a pool full of poison gives the very bits of a zero-filled one."""
    sequences = [(1, context) for context in range(1, 16)] + [(3, context) for context in range(3, 16)]
    dirty, clean = (paged_case(sequences, (4, 2), 32, block_size=7, poison=fill) for fill in (poison, 0.0))
    assert torch.equal(attend(dirty, window=window), attend(clean, window=window))


@pytest.mark.parametrize("window", [1, 15, 16, 17])
def test_b86_window_at_every_length(window: int) -> None:
    """Decode at lengths 1 to 64. A slot the window has left behind holds NaN: it may have been freed."""
    case = paged_case([(1, context) for context in range(1, 65)], (2, 1), 32)
    for sequence in range(64):
        for position in range(max(0, sequence + 1 - window)):
            block = int(case.batch.block_tables[sequence, position // 16])
            case.pool[block, :, :, :, position % 16] = math.nan
    check(case, window)


@pytest.mark.parametrize("window", [1, 15, 16, 17])
def test_b86_blocks_behind_a_window_are_never_read(window: int) -> None:
    """Null entries, which hold NaN, for what slid out: a chunk of 4 ending at 90 reads from 90 - 4 - window + 1 on."""
    case = paged_case([(20, 90), (1, 90)], (4, 2), 32, block_size=8)
    for sequence, first_key in enumerate((90 - 20 - window + 1, 90 - window)):
        case.batch.block_tables[sequence, : first_key // 8] = 0
    check(case, window)


def test_a_window_of_the_wrong_width_is_told_apart() -> None:
    case = paged_case([(1, 40), (40, 40)], (4, 2), 32)
    actual = attend(case, window=16)
    assert relative_error(actual, attended(case, 16)) < 1e-5
    for wrong in (15, 17, None):
        assert relative_error(actual, attended(case, wrong)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_chunks_over_a_prefix(dtype: torch.dtype) -> None:
    """Tiles of 128 rows, 42 tokens of 3 heads, and 64 keys: whole tiles before the diagonal are read without a mask."""
    check(paged_case([(100, 300), (20, 64), (130, 130), (43, 191)], (6, 2), 32, dtype=dtype))


@pytest.mark.parametrize(("dtype", "at_once"), [(torch.float32, 2), (torch.bfloat16, 16)])
def test_splits_are_combined(dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,400 keys of 2 heads on 8 multiprocessors: splits of at least 256 keys, six for the longest; the sequence of one
    key fills one and leaves five empty. They are combined in one go, or two at a time.
    """
    monkeypatch.setattr("kernels.triton.attention.COMBINED_AT_ONCE", at_once)
    case = paged_case([(1, 1400), (1, 1), (1, 257)], (6, 2), 32, dtype=dtype)
    check(case)
    check(case, window=1000, sinks=True)
    (plan, *_) = case.batch.step_cache.values()
    assert plan.short.num_splits == 6


@pytest.mark.parametrize("context", [300, 700])
@pytest.mark.parametrize("sinks", [None, torch.tensor([-1.0, 0.3, 2.0])])
def test_deterministic_mode_gives_the_same_bits_in_every_batch(context: int, sinks: torch.Tensor | None) -> None:
    """The batches differ in splits of 512 keys: 1 or 2, 2, or 3. Queries are drawn after all KV, so set by hand."""
    outputs = []
    for others in ([], [(1, 600)], [(1, 1300), (1, 3)]):
        case = paged_case([(1, context), *others], (3, 1), 32)
        case.query[0] = torch.linspace(-2, 2, 96).view(3, 32)
        torch.use_deterministic_algorithms(True)
        try:
            outputs.append(attend(case, sinks=sinks)[0])
        finally:
            torch.use_deterministic_algorithms(False)
        (plan,) = case.batch.step_cache.values()
        assert plan.short.num_splits == -(-max(case.batch.host_context_lengths) // 512)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("context", [200, 700])
def test_nan_that_is_seen_is_not_hidden(context: int) -> None:
    """In one split or in three, of which one holds the NaN: its KV head's query heads are NaN, the others are not."""
    case = paged_case([(1, context), (1, 40)], (4, 2), 32)
    case.pool[case.batch.block_tables[0, 0], LAYER, 0, 1, 3, 5] = math.nan
    output = attend(case, sinks=torch.zeros(4))
    assert output[0, 2:].isnan().all()
    assert output[0, :2].isfinite().all()
    assert output[1].isfinite().all()
    query = case.query.clone()
    query[1, 0] = math.nan
    case.pool[case.batch.block_tables[0, 0], LAYER, 0, 1, 3, 5] = 0
    output = paged_attention(query, case.pool, LAYER, case.batch, scale=case.scale)
    assert output.isnan().flatten(0, 1).all(-1).tolist() == [False] * 4 + [True] + [False] * 3


def test_a_batch_serves_several_streams() -> None:
    """What its plan holds is only read: the results of splits belong to each call."""
    case = paged_case([(1, 700)], (4, 2), 32)
    attend(case)
    (plan,) = case.batch.step_cache.values()
    assert plan.short.combined
    first, second = (plan.short.split_results(Heads(2, 2, 32), case.pool.device) for _ in range(2))
    assert first[0].data_ptr() != second[0].data_ptr()
    assert [tuple(part.shape) for part in first] == [(1, 2, 3, 16, 32), (1, 2, 3, 16)]


def test_padding_rows_give_zeros() -> None:
    """A captured batch of 4 replayed with 2 sequences: the others have length 0 on the device and null tables."""
    case = paged_case([(1, 300), (1, 40), (1, 300), (1, 17)], (4, 2), 32)
    expected = attended(case)
    case.batch.context_lengths[2:] = 0
    case.batch.block_tables[2:] = 0
    for sinks in (None, torch.zeros(4), torch.full((4,), -math.inf)):
        actual = attend(case, sinks=sinks)
        assert torch.equal(actual[2:], torch.zeros(2, 4, 32))
    assert relative_error(attend(case)[:2], expected[:2]) < 1e-5


def test_contexts_may_outgrow_the_plan() -> None:
    """A captured graph's grid has the splits of shorter contexts: they grow with the lengths on the device."""
    case = paged_case([(1, 900), (1, 600)], (4, 2), 32)
    planned = RaggedBatch(
        case.batch.query_starts, case.batch.context_lengths, case.batch.block_tables, (1, 1), (300, 300)
    )
    actual = attend(case, planned)
    (plan,) = planned.step_cache.values()
    assert plan.short.num_splits == 2
    assert relative_error(actual, attended(case)) < 1e-5


def test_pools_and_queries_by_strides() -> None:
    """A token-major pool and queries that are a view of fused projections: nothing is copied, nothing else is read."""
    case = paged_case(MIXED, (6, 2), 32)
    token_major = case.pool.transpose(3, 4).contiguous().transpose(3, 4)
    fused = torch.full((case.query.shape[0], 10, 32), math.nan)
    fused[:, :6] = case.query
    by_strides = paged_attention(fused[:, :6], token_major, LAYER, case.batch, scale=case.scale)
    assert torch.equal(by_strides, attend(case))


def test_b79_blocks_beyond_32_bits() -> None:
    """32,770 blocks of 2 * 2 * 2 * 256 * 32 = 65,536 elements: the last one starts at 2**31 + 65,536.

    The pool is a mapping of 4 GiB, never touched but for the last two blocks.
    """
    num_rows = 2**15 + 2
    pool = allocate_host_pool(PoolShape(1, 2, 2, 256, 32, torch.float16), num_rows, pinned=False)
    assert (num_rows - 1) * pool.stride(0) > 2**31
    small = paged_case([(1, 200), (7, 200)], (4, 2), 32, block_size=256, dtype=torch.float16)
    tables = small.batch.block_tables.clone()
    for sequence, block in enumerate((num_rows - 1, num_rows - 2)):
        pool[block] = small.pool[int(tables[sequence, 0])]
        tables[sequence, 0] = block
    batch = RaggedBatch.of([1, 7], [200, 200], tables)
    actual = paged_attention(small.query, pool, LAYER, batch, scale=small.scale)
    assert relative_error(actual, attended(small)) < 2e-3


def test_what_only_these_kernels_refuse() -> None:
    case = paged_case([(1, 8)], (2, 1), 32)
    double = paged_case([(1, 8)], (2, 1), 32, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"queries are torch\.float64"):
        attend(double)
    with pytest.raises(ValueError, match="last dimension"):
        paged_attention(case.query.mT.contiguous().mT, case.pool, LAYER, case.batch, scale=1.0)
