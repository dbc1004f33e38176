"""write_kv and copy_blocks, bit for bit against loops over slots and blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import PoolShape, allocate_pool, copy_blocks, write_kv, write_rotated_kv


def random_pool(shape: PoolShape, seed: int = 0) -> torch.Tensor:
    pool = allocate_pool(shape)
    return pool.copy_(torch.randn(pool.shape, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.unit
def test_shape_and_bytes() -> None:
    """Llama-3.1-8B: 32 layers * 2 * 8 heads * 16 tokens * 128 dims * 2 bytes = 2 MiB a block."""
    shape = PoolShape(10, 32, 8, 16, 128, torch.bfloat16)
    assert shape.block_bytes == 2 * 2**20
    assert shape.pool_bytes == 11 * shape.block_bytes
    small = PoolShape(4, 2, 3, 5, 8, torch.float16)
    pool = allocate_pool(small)
    assert pool.shape == (5, 2, 2, 3, 5, 8)
    assert pool.is_contiguous()
    assert pool.nbytes == small.pool_bytes
    assert pool[1].nbytes == small.block_bytes
    with pytest.raises(ValueError, match="block_size must be at least 1"):
        PoolShape(4, 2, 3, 0, 8, torch.float16)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(
    block_size=st.sampled_from([1, 5, 7, 16]),
    kv_heads=st.integers(1, 3),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    data=st.data(),
)
def test_write_kv_touches_its_slots_only(
    block_size: int, kv_heads: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    shape = PoolShape(3, 2, kv_heads, block_size, 4, dtype)
    owned = st.integers(block_size, 4 * block_size - 1)
    slots = data.draw(st.lists(owned, unique=True, max_size=8))
    layer = data.draw(st.integers(0, 1))
    key, value = torch.randn(2, len(slots), kv_heads, 4, dtype=torch.float64).to(dtype)
    pool = random_pool(shape)
    expected = pool.clone()
    for token, slot in enumerate(slots):
        for head in range(kv_heads):
            expected[slot // block_size, layer, 0, head, slot % block_size] = key[token, head]
            expected[slot // block_size, layer, 1, head, slot % block_size] = value[token, head]
    write_kv(pool, layer, key, value, torch.tensor(slots, dtype=torch.int64))
    assert torch.equal(pool, expected)


@pytest.mark.unit
def test_null_block_is_a_sink_that_may_repeat() -> None:
    shape = PoolShape(2, 1, 1, 4, 2, torch.float32)
    pool = random_pool(shape)
    before = pool.clone()
    write_kv(pool, 0, torch.ones(3, 1, 2), torch.ones(3, 1, 2), torch.tensor([0, 0, 3]))
    assert torch.equal(pool[1:], before[1:])


@pytest.mark.unit
def test_write_kv_refuses_what_does_not_fit() -> None:
    pool = allocate_pool(PoolShape(2, 1, 2, 4, 8, torch.float32))
    good = torch.zeros(1, 2, 8)
    with pytest.raises(ValueError, match=r"must both be \[1, 2, 8\]"):
        write_kv(pool, 0, torch.zeros(1, 1, 8), good, torch.tensor([4]))
    with pytest.raises(ValueError, match="half at most 4"):
        write_rotated_kv(pool, 0, good, good, good, torch.tensor([4]), torch.zeros(1, 5), torch.zeros(1, 5))
    turn = torch.zeros(1, 4)
    with pytest.raises(ValueError, match=r"query float32 \[2, 2, 8\] must be \[1, heads, 8\]"):
        write_rotated_kv(pool, 0, torch.zeros(2, 2, 8), good, good, torch.tensor([4]), turn, turn)
    for outside in (3 * 4, -1):
        with pytest.raises(IndexError):
            write_kv(pool, 0, good, good, torch.tensor([outside]))


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_copy_blocks_moves_all_layers_bit_for_bit(data: st.DataObject) -> None:
    pool = random_pool(PoolShape(8, 2, 2, 3, 4, torch.float32))
    order = data.draw(st.permutations(range(1, 9)))
    count = data.draw(st.integers(0, 4))
    destinations = order[:count]
    sources = data.draw(st.lists(st.sampled_from(order[count:]), min_size=count, max_size=count))
    expected = pool.clone()
    for source, destination in zip(sources, destinations, strict=True):
        expected[destination] = pool[source]
    copy_blocks(pool, sources, destinations)
    assert torch.equal(pool, expected)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("sources", "destinations", "message"),
    [
        ([1], [2, 3], "1 sources for 2 destinations"),
        ([1, 2], [2, 3], r"blocks \[2\] are both source and destination"),
        ([2], [2], r"blocks \[2\] are both source and destination"),
        ([1, 2], [3, 3], r"blocks \[3\] are the destination of more than one copy"),
        ([0], [1], "block 0 cannot be copied"),
        ([1], [0], "block 0 cannot be copied"),
        ([1], [5], r"block 5 cannot be copied: a block id lies in 1\.\.4"),
        ([-1], [2], "block -1 cannot be copied"),
    ],
)
def test_copy_blocks_refuses_and_leaves_the_pool(sources: list[int], destinations: list[int], message: str) -> None:
    pool = random_pool(PoolShape(4, 1, 1, 2, 2, torch.float32))
    before = pool.clone()
    with pytest.raises(ValueError, match=message):
        copy_blocks(pool, sources, destinations)
    assert torch.equal(pool, before)
