"""Forks and copy-on-write. Ids are ours: block 0 is the null block, so a 6-token parent of block size 4 is [1, 2]."""

import itertools

import pytest
from kv_fake_worker import admit, copies, fresh, grants

SIX = fresh(6, 1)


@pytest.mark.scenario("fork-01-share", "fork-02-child-writes", "fork-08-free-order")
def test_a_child_shares_until_it_writes(attach):
    worker = attach(num_blocks=8)
    worker.admit(1, SIX)
    worker.step(forks=[(1, [2], 6)])
    assert worker.tables == {1: [1, 2], 2: [1, 2]}
    assert (worker.available(), worker.ref_counts(1, 2)) == (6, [2, 2])
    response = worker.step(advances={2: 7})
    assert copies(response) == [(2, 3)]
    assert worker.tables == {1: [1, 2], 2: [1, 3]}
    assert worker.available() == 5
    worker.step(releases=[1])
    assert worker.available() == 6
    worker.step(releases=[2])
    assert worker.available() == 8


@pytest.mark.scenario("fork-04-boundary")
def test_full_blocks_are_never_copied(attach):
    worker = attach(num_blocks=8)
    worker.admit(1, fresh(8, 1))
    worker.step(forks=[(1, [2], 8)])
    response = worker.step(advances={2: 9})
    assert copies(response) == []
    assert worker.tables[2] == [1, 2, 3]


@pytest.mark.scenario("fork-05-three-way", "B37")
def test_three_writers_of_a_partial_block_make_two_copies(attach):
    worker = attach(num_blocks=8)
    worker.admit(1, SIX)
    worker.step(forks=[(1, [2, 3], 6)])
    made = [copies(worker.step(advances={seq: 7})) for seq in (2, 3, 1)]
    assert made == [[(2, 3)], [(2, 4)], []]  # the last owner writes in place
    assert worker.tables == {1: [1, 2], 2: [1, 3], 3: [1, 4]}
    assert worker.available() == 4
    response = worker.step(advances={1: 8, 2: 8, 3: 8})
    assert copies(response) == []


def test_three_writers_in_one_step_make_two_copies_too(attach):
    worker = attach(num_blocks=8)
    worker.admit(1, SIX)
    response = worker.step(forks=[(1, [2, 3], 6)], advances={1: 7, 2: 7, 3: 7})
    # One rank for the group, so the lowest id goes first; the last owner of block 2 is sequence 3.
    assert copies(response) == [(2, 3), (2, 4)]
    assert worker.tables == {1: [1, 3], 2: [1, 4], 3: [1, 2]}
    assert set(response.copies.sources).isdisjoint(response.copies.destinations)


def test_a_child_inherits_what_is_committed_below_the_fork(attach):
    worker = attach(num_blocks=8)
    worker.admit(1, SIX)
    worker.step(advances={1: 9})
    worker.step(commits={1: (6, [50, 51])}, forks=[(1, [2], 7)])
    worker.step(advances={2: 8})
    worker.step(commits={2: (7, [60])})
    assert worker.matched([*SIX, 50, 51]) == 7
    assert worker.tables[2] == [1, 4]
    assert grants(worker.admit(3, [*SIX, 50, 60, 9]))[3].cached_tokens == 8


@pytest.mark.scenario("cow-01-both-ends-pinned")
def test_both_ends_of_a_copy_are_pinned_until_its_step_has_completed(attach):
    """Ours: nobody refers to them, yet nobody is granted them; other systems keep a reference instead."""
    worker = attach(num_blocks=8)
    worker.admit(1, SIX)
    worker.step(forks=[(1, [2], 6)])
    worker.step(advances={2: 7})  # copy 2 -> 3 in step 3
    stats = worker.step(releases=[1, 2], completed=2).stats
    assert stats.fenced_blocks == 3  # 2 and 3, and the hashed 1, which must not leave before them
    assert worker.ref_counts(1, 2, 3) == [0, 0, 0]
    assert worker.step(completed=3).stats.fenced_blocks == 0


@pytest.mark.scenario("cow-02-fence")
def test_a_prompt_waits_for_the_ends_of_a_copy(attach):
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(6, 1))  # 1 2
    worker.admit(9, fresh(4, 100))  # 3
    worker.step(forks=[(1, [2], 6)])
    worker.step(advances={2: 7})  # step 4 copies 2 -> 4
    response = worker.step(releases=[1, 2], completed=3, admits=[admit(10, fresh(5, 500))])
    assert [item.seq for item in response.waiting] == [10]
    response = worker.step(completed=4, admits=[admit(10, fresh(5, 500))])
    assert sorted(worker.tables[10]) == [2, 4]


@pytest.mark.scenario("B24")
@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3, 4])))
def test_beams_may_end_in_any_order(attach, order):
    worker = attach(num_blocks=6)
    worker.admit(1, fresh(9, 1))
    worker.step(forks=[(1, [2, 3, 4], 9)])
    for seq in order:
        worker.step(releases=[seq])
    assert worker.available() == 6
    before = worker.blocks()
    worker.step(releases=[order[0]])
    assert worker.blocks() == before
