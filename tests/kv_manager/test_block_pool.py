"""The free list, the index and the fences on their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_manager.core.block_pool import BlockPool
from kv_manager.core.prefix_index import PrefixIndex

pytestmark = pytest.mark.unit

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))


def take(pool, count):
    return [pool.take() for _ in range(count)]


def test_blocks_never_granted_come_in_order_of_their_ids():
    pool = BlockPool(4)
    assert take(pool, 4) == [1, 2, 3, 4]
    assert (pool.available, pool.referenced_blocks) == (0, 4)


def test_a_pool_of_ten_million_blocks_starts_without_touching_them():
    pool = BlockPool(10_000_000)
    assert take(pool, 2) == [1, 2]
    assert (pool.unused(), pool.free_blocks) == ([range(3, 10_000_001)], 9_999_998)


@given(st.integers(1, 12), st.data())
def test_adopted_blocks_leave_their_gaps(size, data):
    """What lies between adopted blocks is granted first, in order, then what lies behind them."""
    references = data.draw(st.dictionaries(st.integers(1, size), st.integers(1, 3)))
    pool = BlockPool(size)
    pool.adopt(references)
    gaps = [block for block in range(1, size + 1) if block not in references]
    assert (list(pool.used()), list(pool.grant_order())) == (sorted(references), gaps)
    assert (pool.available, pool.free_blocks, pool.referenced_blocks) == (len(gaps), len(gaps), len(references))
    assert take(pool, len(gaps)) == gaps
    assert (list(pool.used()), pool.unused()) == (list(range(1, size + 1)), [])


def test_a_returned_block_is_granted_before_the_gaps():
    pool = BlockPool(5)
    pool.adopt({2: 1, 4: 2})
    pool.drop(2, fence=0)
    assert list(pool.grant_order()) == [2, 1, 3, 5]


@pytest.mark.parametrize("adopted", [{}, {1: 1}, {1 << 20: 1}])
def test_adopting_a_large_pool_looks_at_its_tables_alone(adopted):
    """A million blocks, none or one of them in a table: one range of free ones, however high the block's id."""
    pool = BlockPool(1 << 20)
    pool.adopt(adopted)
    assert (len(pool.unused()), list(pool.used())) == (1, list(adopted))
    assert pool.listed() == ([], [])


def test_taking_from_an_empty_pool_is_a_bug_of_the_caller():
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(AssertionError, match="miscounted"):
        pool.take()


def test_plain_blocks_return_to_the_front_and_hashed_ones_to_the_back():
    pool = BlockPool(6)
    table = take(pool, 4)
    pool.publish([(1, A, C)], step=1)
    pool.publish([(2, B, C)], step=1)
    pool.drop_table(table, fence=0)
    assert list(pool.grant_order()) == [3, 4, 5, 6, 2, 1]
    assert (pool.free_blocks, pool.cached_blocks) == (4, 2)


def test_a_fenced_block_returns_when_its_step_has_completed():
    pool = BlockPool(3)
    take(pool, 2)
    pool.drop(1, fence=5)
    assert list(pool.grant_order()) == [3]
    pool.complete(4)
    assert list(pool.fenced()) == [1]
    pool.complete(5)
    assert list(pool.grant_order()) == [1, 3]


def test_a_pin_counts_again_after_a_hit():
    """A hit takes a block out of the fence, not the fence off the block."""
    pool = BlockPool(3)
    take(pool, 1)
    pool.publish([(1, A, C)], step=1)
    pool.pin(1, 7)
    pool.drop(1, fence=0)
    assert list(pool.fenced()) == [1]
    pool.hit(1)
    assert (list(pool.fenced()), pool.ref_count[1]) == ([], 1)
    pool.complete(6)
    pool.drop(1, fence=0)
    assert list(pool.fenced()) == [1]


def test_an_indexed_block_leaves_the_fence_after_those_before_it():
    """Otherwise block 1, the parent, could be granted while block 2 is still indexed (I6)."""
    pool = BlockPool(4)
    take(pool, 3)
    pool.publish([(1, A, C)], step=1)
    pool.publish([(2, B, C)], step=1)
    pool.pin(2, 9)
    pool.drop_table([1, 2], fence=0)
    assert list(pool.fenced()) == [2, 1]
    pool.drop(3, fence=0)  # no digest, nothing to wait for
    assert list(pool.grant_order()) == [3, 4]
    pool.complete(9)
    assert list(pool.grant_order()) == [3, 4, 2, 1]


def test_a_digest_is_confirmed_when_its_step_has_completed():
    pool = BlockPool(3)
    take(pool, 2)
    pool.publish([(1, A, C)], step=3)
    assert (pool.first_holder(A), pool.first_confirmed_holder(A)) == (1, 0)
    pool.complete(3)
    pool.publish([(2, A, C)], step=4)
    assert pool.first_confirmed_holder(A) == 1


def test_an_evicted_block_is_forgotten():
    pool = BlockPool(1)
    pool.take()
    pool.publish([(1, A, C)], step=1)
    pool.drop(1, fence=0)
    assert pool.take() == 1
    assert (pool.first_holder(A), pool.digest[1], pool.evicted_blocks) == (0, None, 1)
    assert pool.unconfirmed == {}


def test_a_block_keeps_the_digest_it_has():
    pool = BlockPool(2)
    pool.take()
    pool.publish([(1, A, C)], step=1)
    pool.publish([(1, A, C)], step=2)
    assert pool.unconfirmed == {1: 1}


def test_the_index_keeps_duplicates_in_order():
    index = PrefixIndex()
    for block in (5, 3, 9):
        index.add(A, block)
    index.add(B, 7)
    assert (index.first(A), index.holders(A), index.first(B), index.first(C)) == (5, [5, 3, 9], 7, 0)
    index.remove(A, 5)
    assert index.holders(A) == [3, 9]
    index.remove(A, 9)
    assert (index.first(A), index.holders(A)) == (3, [3])
    index.remove(A, 3)
    assert (index.first(A), index.digests()) == (0, [B])
