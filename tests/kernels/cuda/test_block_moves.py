"""The CUDA C++ of the block moves, compiled by g++ and run on CPU memory by the launcher that runs it on a GPU."""

import random

import pytest
import torch
from cuda_on_cpu import CpuDriver, signatures
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import PoolShape, allocate_host_pool
from kernels.cuda import moves
from kernels.cuda.moves import copy_runs, launch_moves, prefers_launch

# Blocks of one word, of words no multiple of 4 * 256 threads, of bytes no multiple of 16, of many words.
SHAPES = [
    PoolShape(12, 1, 1, 1, 8, torch.float16),
    PoolShape(12, 2, 3, 5, 40, torch.bfloat16),
    PoolShape(12, 1, 1, 7, 3, torch.float8_e5m2),
    PoolShape(12, 4, 2, 16, 64, torch.float32),
]


def random_pool(shape: PoolShape, seed: int = 0) -> torch.Tensor:
    """Random bytes, so NaN of every kind among them."""
    generator = torch.Generator().manual_seed(seed)
    size = (shape.num_blocks + 1) * shape.block_bytes
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).view(shape.dtype).view(shape.dims)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def pairs_of(sources: list[int], destinations: list[int]) -> torch.Tensor:
    return torch.tensor(list(zip(sources, destinations, strict=True)), dtype=torch.int64).reshape(-1, 2)


@pytest.mark.unit
def test_the_source_declares_what_is_launched() -> None:
    assert set(signatures()) == {"move_blocks_by_16", "move_blocks_by_1"}


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_one_launch_moves_every_pair_and_nothing_else(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    order = data.draw(st.permutations(range(13)))
    count = data.draw(st.integers(1, 6))
    destinations = order[:count]
    sources = data.draw(st.lists(st.sampled_from(order[count:]), min_size=count, max_size=count))
    pool = random_pool(shape)
    expected = bits(pool.clone())
    for source, destination in zip(sources, destinations, strict=True):
        expected[destination] = expected[source]
    driver = CpuDriver()
    launch_moves(driver, pool, pool, pairs_of(sources, destinations))
    assert torch.equal(bits(pool), expected)
    ((kernel, _, _, _),) = driver.launches
    assert kernel == f"move_blocks_by_{16 if shape.block_bytes % 16 == 0 else 1}"


@pytest.mark.unit
def test_more_pairs_than_a_grid_has_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 pairs over 3 rows: rows take pairs 0 3 6 9, 1 4 7 and 2 5 8."""
    monkeypatch.setattr(moves, "MOST_ROWS", 3)
    source, destination = random_pool(SHAPES[1], 1), random_pool(SHAPES[1], 2)
    expected = bits(destination.clone())
    expected[1:11] = bits(source)[2:12]
    driver = CpuDriver()
    launch_moves(driver, source, destination, pairs_of(list(range(2, 12)), list(range(1, 11))))
    assert driver.launches[0][1][1] == 3
    assert torch.equal(bits(destination), expected)


@pytest.mark.unit
def test_memory_that_is_not_aligned_moves_by_bytes() -> None:
    shape = SHAPES[3]
    memory = torch.zeros((shape.num_blocks + 1) * shape.block_bytes + 4, dtype=torch.uint8)
    pool = memory[4:].view(shape.dtype).view(shape.dims)
    pool.copy_(random_pool(shape))
    expected = bits(pool.clone())
    expected[5] = expected[2]
    driver = CpuDriver()
    launch_moves(driver, pool, pool, pairs_of([2], [5]))
    assert driver.launches[0][0] == "move_blocks_by_1"
    assert torch.equal(bits(pool), expected)


@pytest.mark.unit
def test_pools_that_are_views_are_refused() -> None:
    """Layers 0 and 1 of four: what lies from one block to the next is not only theirs."""
    whole, driver = random_pool(SHAPES[3]), CpuDriver()
    view = whole[:, :2]
    for source, destination in ((view, view), (view, view.clone()), (view.clone(), view)):
        with pytest.raises(ValueError, match="not contiguous"):
            launch_moves(driver, source, destination, pairs_of([1], [2]))
        with pytest.raises(ValueError, match="not contiguous"):
            copy_runs(driver, source, destination, [1], [2])
    assert not driver.launches
    assert not driver.copies


@pytest.mark.unit
def test_b79_blocks_beyond_32_bits() -> None:
    """Blocks of 2 MiB; number 2,100 starts at 4.4e9 bytes: beyond 32 bits, signed or not. Sparse memory."""
    shape = PoolShape(1, 8, 2, 256, 64, torch.float32)
    assert shape.block_bytes == 2**21
    pool = allocate_host_pool(shape, 2101, pinned=False)
    pool[1] = torch.randn(pool.shape[1:])
    launch_moves(CpuDriver(), pool, pool, pairs_of([1], [2100]))
    assert torch.equal(pool[2100], pool[1])
    launch_moves(CpuDriver(), pool, pool, pairs_of([2100], [3]))
    assert torch.equal(pool[3], pool[1])
    assert not pool[2].any()
    assert not pool[2099].any()


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), count=st.integers(0, 12))
def test_runs_are_copied_as_one(seed: int, count: int) -> None:
    """However pairs are joined into runs, the bytes are those of single copies, and no run could be joined further."""
    dice = random.Random(seed)
    start = dice.randint(0, 12 - count)
    sources = list(range(start, start + count)) if dice.random() < 0.5 else dice.sample(range(13), count)
    destinations = list(range(count)) if dice.random() < 0.5 else dice.sample(range(13), count)
    source, destination = random_pool(SHAPES[0], 1), random_pool(SHAPES[0], 2)
    expected = bits(destination.clone())
    for one, other in zip(sources, destinations, strict=True):
        expected[other] = bits(source)[one]
    driver = CpuDriver()
    copy_runs(driver, source, destination, sources, destinations)
    assert torch.equal(bits(destination), expected)
    for (to, off, length), (next_to, next_off, _) in zip(driver.copies, driver.copies[1:], strict=False):
        assert (to + length, off + length) != (next_to, next_off)


@pytest.mark.unit
def test_small_blocks_are_moved_by_one_launch_if_the_host_is_pinned() -> None:
    """SmolLM2-135M in bf16: 30 layers * 2 * 3 heads * 16 tokens * 64 dims * 2 bytes = 360 KiB: copied."""
    assert not prefers_launch(PoolShape(1, 30, 3, 16, 64, torch.bfloat16).block_bytes, host_is_pinned=True)
    assert prefers_launch(PoolShape(1, 2, 1, 16, 64, torch.bfloat16).block_bytes, host_is_pinned=True)
    assert not prefers_launch(PoolShape(1, 2, 1, 16, 64, torch.bfloat16).block_bytes, host_is_pinned=False)
