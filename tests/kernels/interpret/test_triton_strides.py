"""Arguments that are views: read where they lie, beyond 32 bits too, or refused."""

import pytest
import torch
from poisoned_steps import LAYER, attended, paged_case, relative_error

from kernels import PoolShape, RaggedBatch, allocate_host_pool
from kernels.triton import paged_attention, write_kv, write_rotated_kv, zero_blocks

pytestmark = pytest.mark.interpret


def every_other(tensor: torch.Tensor) -> torch.Tensor:
    """An equal view whose elements along the last dimension lie two apart, with 0 between them: the null block."""
    return torch.stack((tensor, torch.zeros_like(tensor)), -1).flatten(-2)[..., ::2]


@pytest.mark.parametrize("layout", ["every other column", "columns first"])
def test_block_tables_by_strides(layout: str) -> None:
    case = paged_case([(1, 40), (20, 33), (1, 300)], (4, 2), 32)
    tables = case.batch.block_tables
    view = every_other(tables) if layout == "every other column" else tables.t().contiguous().t()
    assert torch.equal(view, tables)
    assert view.stride(1) != 1
    batch = RaggedBatch.of([1, 20, 1], [40, 33, 300], view)
    actual = paged_attention(case.query, case.pool, LAYER, batch, scale=case.scale)
    assert relative_error(actual, attended(case)) < 1e-5


def test_sinks_and_scales_by_strides() -> None:
    case = paged_case([(1, 40), (5, 33), (1, 300)], (4, 2), 32, kv_dtype=torch.float8_e4m3fn)
    assert case.kv_scales is not None
    sinks = torch.linspace(-1, 3, 4)
    actual = paged_attention(
        case.query,
        case.pool,
        LAYER,
        case.batch,
        scale=case.scale,
        sinks=every_other(sinks),
        kv_scales=case.kv_scales.t().contiguous().t(),
    )
    assert relative_error(actual, attended(case, sinks=sinks)) < 1e-5


def test_slots_and_scales_of_writes_by_strides() -> None:
    pools = [torch.zeros(PoolShape(3, 1, 2, 4, 32, torch.float8_e4m3fn).dims, dtype=torch.float8_e4m3fn) for _ in "ab"]
    key, value = torch.randn(2, 3, 2, 32)
    slots, scales = torch.tensor([4, 9, 15]), torch.tensor([[0.02, 0.5], [0.001, 3.0]])
    write_kv(pools[0], 0, key, value, slots, kv_scales=scales)
    write_kv(pools[1], 0, key, value, every_other(slots), kv_scales=scales.t().contiguous().t())
    assert torch.equal(*(pool.view(torch.uint8) for pool in pools))


def test_pools_that_are_views_are_not_zeroed() -> None:
    """Layers 0 and 1 of four: a block of the view is no contiguous piece."""
    whole = torch.ones(5, 4, 2, 1, 4, 16)
    with pytest.raises(ValueError, match="not contiguous"):
        zero_blocks(whole[:, :2], [1])
    assert whole.all()


def untouched_memory() -> torch.Tensor:
    """2**31 fp16 and some more: 4 GiB of addresses."""
    return allocate_host_pool(PoolShape(1, 2, 2, 256, 32, torch.float16), 2**15 + 2, pinned=False).view(-1)


def far_heads(tokens: int) -> torch.Tensor:
    """[tokens, 3, 32] whose head 2 starts 2 * 2**30 = 2**31 elements on."""
    return untouched_memory().as_strided((tokens, 3, 32), (32, 2**30, 1))


def test_tokens_beyond_32_bits_are_refused() -> None:
    """Blocks of 3 tokens, 2**30 elements from each to the next: the third would start at 2**31."""
    case = paged_case([(1, 40)], (2, 1), 32, block_size=3, dtype=torch.float16)
    pool = untouched_memory().as_strided(case.pool.shape, (2 * 2 * 32, 2 * 32, 32, 32, 2**30, 1))
    with pytest.raises(ValueError, match="1073741824 elements apart"):
        paged_attention(case.query, pool, LAYER, case.batch, scale=case.scale)


def test_heads_beyond_32_bits() -> None:
    case = paged_case([(2, 40)], (3, 3), 32, dtype=torch.float16)
    query = far_heads(2).copy_(case.query)
    actual = paged_attention(query, case.pool, LAYER, case.batch, scale=case.scale)
    assert relative_error(actual, attended(case)) < 2e-3

    slots, turn = torch.tensor([4, 9]), torch.rand(2, 2, 16)
    pools = [torch.zeros(PoolShape(3, 1, 3, 4, 32, torch.float16).dims, dtype=torch.float16) for _ in "ab"]
    near, value = case.query.clone(), torch.randn(2, 3, 32).half()
    key = far_heads(2).copy_(value)
    write_rotated_kv(pools[0], 0, near, value, value, slots, *turn)
    write_rotated_kv(pools[1], 0, query, key, key, slots, *turn)
    assert torch.equal(*pools)
    assert torch.equal(query, near)
