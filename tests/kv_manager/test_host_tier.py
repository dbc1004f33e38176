"""The host tier as a list of blocks: the order in which they are taken, and what a large tier costs to begin with."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_manager.core.host_tier import NO_HOST_BLOCK, HostTier

pytestmark = pytest.mark.unit


def test_blocks_never_used_come_first_then_the_one_returned_first():
    tier = HostTier(4)
    table = [tier.take(), tier.take(), tier.take()]
    assert table == [0, 1, 2]
    tier.share(table)
    tier.drop([2, 0], fence=0)
    assert [tier.take() for _ in range(3)] == [3, 2, 0]
    assert tier.free_blocks == 0


def test_a_fenced_block_returns_with_its_step():
    tier = HostTier(1)
    tier.share([tier.take()])
    tier.drop([0], fence=7)
    tier.complete(6)
    assert (tier.free_blocks, tier.unparked_blocks) == (0, 1)
    tier.complete(7)
    assert (tier.free_blocks, tier.take()) == (1, 0)


@given(st.integers(1, 12), st.data())
def test_adopted_tables_leave_their_gaps(size, data):
    """Whatever lies between adopted blocks is taken first, in order, then what lies behind them."""
    blocks = st.integers(0, size - 1)
    tables = data.draw(st.lists(st.lists(st.one_of(blocks, st.just(NO_HOST_BLOCK)), max_size=4), max_size=4))
    tier = HostTier(size)
    tier.adopt(tables)
    used = {block for table in tables for block in table} - {NO_HOST_BLOCK}
    free = [block for block in range(size) if block not in used]
    assert tier.references().keys() == used
    assert (tier.grantable(), tier.free_blocks, tier.unparked_blocks) == (free, len(free), len(free))
    assert [tier.take() for _ in free] == free


@pytest.mark.parametrize("table", [[], [1 << 23]])
def test_a_large_tier_costs_nothing_until_it_is_used(table):
    """16,777,216 blocks, empty or with its middle block adopted: two ranges, not millions of numbers."""
    tracemalloc.start()
    tier = HostTier(1 << 24)
    tier.adopt([table])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000
    assert tier.free_blocks == (1 << 24) - len(table)
    assert tier.take() == 0
