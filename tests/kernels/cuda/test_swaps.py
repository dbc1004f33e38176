"""Swaps and host blocks on the CPU, bit for bit; and why CuPy is not there."""

import importlib.util
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import PoolShape, allocate_host_pool, allocate_pool, copy_blocks, swap_in, swap_out
from kernels.block_pairs import Run, runs
from kernels.cuda.driver import unavailable

SHAPE = PoolShape(8, 2, 2, 3, 4, torch.bfloat16)


def random_bits(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tensor.view(torch.uint8).copy_(
        torch.randint(0, 256, tensor.view(torch.uint8).shape, dtype=torch.uint8, generator=generator)
    )
    return tensor


def sides() -> tuple[torch.Tensor, torch.Tensor]:
    return random_bits(allocate_pool(SHAPE), 1), random_bits(allocate_host_pool(SHAPE, 6, pinned=False), 2)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_went_out_comes_back_elsewhere(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 4))
    blocks = data.draw(st.permutations(range(1, 9)))
    host_blocks = data.draw(st.permutations(range(6)))[:count]
    out, back = blocks[:count], blocks[4 : 4 + count]
    pool, host = sides()
    expected_pool, expected_host = bits(pool.clone()), bits(host.clone())
    for block, host_block, again in zip(out, host_blocks, back, strict=True):
        expected_host[host_block] = expected_pool[block]
        expected_pool[again] = expected_pool[block]
    swap_out(pool, host, out, host_blocks)
    assert torch.equal(bits(host), expected_host)
    swap_in(pool, host, host_blocks, back)
    assert torch.equal(bits(pool), expected_pool)
    assert torch.equal(bits(host), expected_host)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("blocks", "host_blocks", "message"),
    [
        ([1], [2, 3], "1 sources for 2 destinations"),
        ([1, 2], [3, 3], r"blocks \[3\] are the destination of more than one copy"),
        ([0], [1], "block 0 cannot be swapped: a block id lies in 1..8, and 0 is the null block"),
        ([9], [1], "block 9 cannot be swapped"),
        ([1], [6], r"block 6 cannot be swapped: a block id lies in 0\.\.5"),
        ([1], [-1], "block -1 cannot be swapped"),
    ],
)
def test_bad_pairs_move_nothing(blocks: list[int], host_blocks: list[int], message: str) -> None:
    pool, host = sides()
    before = bits(pool.clone()), bits(host.clone())
    with pytest.raises(ValueError, match=message):
        swap_out(pool, host, blocks, host_blocks)
    assert torch.equal(bits(pool), before[0])
    assert torch.equal(bits(host), before[1])


@pytest.mark.unit
def test_swapping_in_has_its_own_ranges() -> None:
    pool, host = sides()
    with pytest.raises(ValueError, match=r"blocks \[2\] are the destination of more than one copy"):
        swap_in(pool, host, [0, 1], [2, 2])
    with pytest.raises(ValueError, match="block 0 cannot be swapped"):
        swap_in(pool, host, [1], [0])
    with pytest.raises(ValueError, match=r"a block id lies in 0\.\.5$"):
        swap_in(pool, host, [6], [1])


def overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    whole = allocate_host_pool(SHAPE, 12, pinned=False)
    return whole[:9], whole[8:]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (overlapping, "overlap in memory"),
        (lambda: (sides()[0], sides()[1].half()), "torch.float16"),
        (lambda: (sides()[0], sides()[1][:, :1].contiguous()), r"\[1, 2, 2, 3, 4\], the pool's"),
        (lambda: (sides()[0], sides()[1].transpose(1, 2)), "contiguous"),
        (lambda: (sides()[0], sides()[1].to("meta")), "host blocks lie on the CPU, not on meta"),
    ],
)
def test_sides_must_fit(make: Callable[[], tuple[torch.Tensor, torch.Tensor]], message: str) -> None:
    pool, host = make()
    with pytest.raises(ValueError, match=message):
        swap_out(pool, host, [1], [1])


@pytest.mark.unit
def test_neighbours_of_one_mapping_do_not_overlap() -> None:
    whole = random_bits(allocate_host_pool(SHAPE, 12, pinned=False), 3)
    swap_out(whole[:9], whole[9:], [1], [0])
    assert torch.equal(bits(whole[9]), bits(whole[1]))


@pytest.mark.unit
def test_host_blocks_are_sparse_until_written() -> None:
    """5,000 blocks of 2 MiB are 9.8 GiB of addresses; reading one block touches 2 MiB."""
    shape = PoolShape(1, 8, 2, 256, 64, torch.float32)
    host = allocate_host_pool(shape, 5_000, pinned=False)
    assert host.shape == (5_000, 8, 2, 2, 256, 64)
    assert host[4_999].abs().sum() == 0
    with pytest.raises(ValueError, match="num_blocks must be at least 1"):
        allocate_host_pool(shape, 0, pinned=False)


@pytest.mark.unit
def test_runs_join_neighbours() -> None:
    assert list(runs([], [])) == []
    assert list(runs([4, 5, 6, 8, 9], [1, 2, 3, 4, 5])) == [Run(4, 1, 3), Run(8, 4, 2)]
    assert list(runs([4, 5], [1, 3])) == [Run(4, 1, 1), Run(5, 3, 1)]
    assert list(runs([5, 4], [2, 1])) == [Run(5, 2, 1), Run(4, 1, 1)]


@pytest.mark.unit
def test_long_runs_of_copies() -> None:
    pool, _ = sides()
    expected = bits(pool.clone())
    expected[5:8] = expected[1:4]
    copy_blocks(pool, [1, 2, 3], [5, 6, 7])
    assert torch.equal(bits(pool), expected)


@pytest.mark.unit
def test_the_reason_for_no_cupy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available() and importlib.util.find_spec("cupy"):
        assert unavailable() is None
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it now fails, as where it is not installed
    reason = unavailable.__wrapped__()
    assert reason is not None
    assert reason.startswith("CuPy is not installed (pip install 'octavo[cuda]')")
    assert "\n" not in reason
