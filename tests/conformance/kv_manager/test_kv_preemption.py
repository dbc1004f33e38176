"""Fences, preemption, the host tier, windows: who gives way, and when blocks come back. Host block ids start at 0."""

import pytest
from kv_fake_worker import admit, copies, fresh, grants, pack, waiting

from octavo.kv.v1 import common_pb2, inspect_pb2, steps_pb2

FENCED = common_pb2.REUSE_REGIME_FENCED
SWAP, RECOMPUTE = steps_pb2.PREEMPTION_MODE_SWAP, steps_pb2.PREEMPTION_MODE_RECOMPUTE


def moves(part):
    return list(zip(part.sources, part.destinations, strict=True))


def victims(response):
    return {
        item.seq: steps_pb2.PreemptionMode.Name(item.mode).removeprefix("PREEMPTION_MODE_")
        for item in response.preempted
    }


@pytest.mark.needs("FENCED_REUSE")
@pytest.mark.scenario("fence-01-finish-inflight")
def test_blocks_wait_for_the_step_in_flight_at_their_release(attach):
    worker = attach(num_blocks=4, reuse_regime=FENCED)
    worker.admit(1, fresh(6, 1))
    worker.step(completed=0)  # step 2 runs on the slots in hand
    stats = worker.step(releases=[1], completed=1).stats
    assert (stats.fenced_blocks, stats.free_blocks) == (2, 2)
    stats = worker.step(completed=2).stats
    assert (stats.fenced_blocks, stats.free_blocks, stats.cached_blocks) == (0, 3, 1)


@pytest.mark.needs("FENCED_REUSE")
@pytest.mark.scenario("fence-02-no-inflight")
def test_blocks_of_a_completed_step_are_free_at_once(attach):
    worker = attach(num_blocks=4, reuse_regime=FENCED)
    worker.admit(1, fresh(6, 1))
    assert worker.step(releases=[1], completed=1).stats.fenced_blocks == 0


@pytest.mark.needs("FENCED_REUSE")
@pytest.mark.scenario("fence-07-deepest")
def test_three_steps_ahead_the_newest_one_counts(attach):
    worker = attach(num_blocks=4, reuse_regime=FENCED)
    worker.admit(1, fresh(6, 1))
    worker.step(completed=0)
    worker.step(completed=0)
    fenced = [worker.step(releases=[1], completed=0).stats.fenced_blocks]
    fenced += [worker.step(completed=done).stats.fenced_blocks for done in (1, 2, 3)]
    assert fenced == [2, 2, 2, 0]


def test_digests_stay_hittable_behind_the_fence(attach):
    worker = attach(num_blocks=4, reuse_regime=FENCED)
    worker.admit(1, fresh(8, 1))
    response = worker.step(releases=[1], completed=0, admits=[admit(2, fresh(9, 1))])
    assert list(grants(response)[2].blocks) == [1, 2, 3]
    assert response.stats.fenced_blocks == 0


@pytest.mark.needs("FENCED_REUSE", "PREEMPTION")
@pytest.mark.scenario("fence-04-preempt-clears-bookkeeping", "fence-05-no-useless-victim", "B27")
def test_a_victim_is_taken_once_and_the_requester_waits_for_its_fence(attach):
    """Ours: the victim goes in the first request, one victim only, and the requester waits for the fence."""
    worker = attach(num_blocks=5, reuse_regime=FENCED)
    worker.admit(1, fresh(8, 1))
    worker.step(admits=[admit(2, fresh(12, 100))], completed=0)
    response = worker.step(advances={1: 9}, completed=0)
    assert victims(response) == {2: "RECOMPUTE"}
    assert waiting(response) == {1: "FENCE"}
    assert 2 not in worker.tables
    response = worker.step(advances={1: 9}, completed=1)
    assert (victims(response), waiting(response)) == ({}, {1: "FENCE"})
    # The step before the preemption has completed: its blocks return, and the victim may be asked for again.
    response = worker.step(advances={1: 9}, completed=2, admits=[admit(2, fresh(4, 100), again=True)])
    assert list(grants(response)) == [1]
    assert waiting(response) == {2: "POOL"}  # two blocks of its own, a spare one each for 1 and itself: 4 of 2 left


@pytest.mark.needs("PREEMPTION")
@pytest.mark.scenario("preempt-01-fcfs-youngest")
def test_the_latest_arrival_gives_way_and_comes_back_first(attach):
    worker = attach(num_blocks=11, block_size=16)
    worker.admit(1, fresh(80, 1))
    worker.admit(2, fresh(80, 1000))
    worker.admit(3, fresh(10, 5000))
    worker.step(releases=[3])
    worker.step(advances={1: 96})  # the sixth block; none is left
    assert worker.available() == 0
    response = worker.step(advances={1: 97})
    assert victims(response) == {2: "RECOMPUTE"}
    assert response.preempted[0].requester == 1
    assert response.preempted[0].reason == steps_pb2.PREEMPTION_REASON_POOL
    # It goes to the head of its class: before a new request that arrived earlier.
    worker.step(releases=[1])
    response = worker.step(admits=[admit(4, fresh(95, 7000), arrival=0), admit(2, fresh(81, 1000), again=True)])
    assert list(grants(response)) == [2]
    assert waiting(response) == {4: "POOL"}


@pytest.mark.needs("PREEMPTION")
@pytest.mark.scenario("preempt-02-priority")
def test_the_least_important_gives_way(attach):
    worker = attach(num_blocks=5, block_size=16)
    worker.admit(1, fresh(32, 1), priority=5)
    worker.step(advances={1: 33})
    worker.admit(2, fresh(32, 1000), priority=0)
    assert {seq: len(table) for seq, table in worker.tables.items()} == {1: 3, 2: 2}
    response = worker.step(advances={2: 33})
    assert victims(response) == {1: "RECOMPUTE"}
    assert list(grants(response)) == [2]


@pytest.mark.needs("PREEMPTION")
@pytest.mark.scenario("preempt-04-self")
def test_the_worst_rank_that_cannot_grow_gives_way_itself(attach):
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(7, 1), priority=1)
    worker.admit(2, fresh(7, 100), priority=2)
    response = worker.step(advances={2: 9, 1: 8})
    assert victims(response) == {2: "RECOMPUTE"}
    assert response.preempted[0].requester == 2
    assert list(grants(response)) == [1]  # served by rank, before anybody gave way


@pytest.mark.needs("PREEMPTION", "FORK", "TENANT_LIMITS")
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ([], steps_pb2.PREEMPTION_REASON_POOL),
        ([{"tenant": "a", "soft_blocks": 3, "hard_blocks": 3}], steps_pb2.PREEMPTION_REASON_TENANT_LIMIT),
    ],
)
def test_who_holds_no_block_yet_and_ranks_last_gives_way_itself(attach, limits, reason):
    """A child forked at 0 tokens asks for its first block when a better rank has them all: 11 tokens are 3 blocks."""
    worker = attach(num_blocks=3 if not limits else 8, tenant_limits=limits)
    root = common_pb2.PrefixRoot(tenant="a")
    worker.admit(1, fresh(4, 1), priority=5, root=root)
    worker.step(forks=[(1, [2], 0)], releases=[1])
    worker.admit(3, fresh(11, 100), root=root)
    response = worker.step(advances={2: 1})
    assert [(item.seq, item.requester, item.reason) for item in response.preempted] == [(2, 2, reason)]
    assert victims(response) == {2: "RECOMPUTE"}
    assert len(worker.tables[3]) == 3
    assert worker.violations() == []


@pytest.mark.needs("PREEMPTION")
@pytest.mark.scenario("preempt-05-no-admission-after")
def test_nobody_is_admitted_in_a_step_that_preempted(attach):
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(8, 1))
    worker.admit(2, fresh(7, 100))
    response = worker.step(advances={1: 9}, admits=[admit(3, [5])])
    assert victims(response) == {2: "RECOMPUTE"}
    assert waiting(response) == {3: "BEHIND"}
    assert worker.available() == 1


@pytest.mark.needs("PREEMPTION")
def test_no_more_victims_than_needed_and_no_better_rank(attach):
    worker = attach(num_blocks=6)
    for seq, priority in ((1, 1), (2, 2), (3, 3)):
        worker.admit(seq, fresh(8, 100 * seq), priority=priority)
    response = worker.step(advances={2: 9})
    assert victims(response) == {3: "RECOMPUTE"}  # not 1, which ranks better; not 2, whose request it is


@pytest.mark.needs("HOST_TIER")
@pytest.mark.scenario("swap-01-roundtrip")
def test_a_parked_sequence_returns_in_the_order_of_its_table(attach):
    worker = attach(num_blocks=5, host_blocks=4, block_bytes=1)
    worker.admit(1, fresh(8, 1))
    worker.admit(2, fresh(6, 100))
    assert worker.tables[2] == [3, 4]
    worker.step(advances={1: 12})
    response = worker.step(advances={1: 13})
    assert victims(response) == {2: "SWAP"}
    assert moves(response.swaps_out) == [(3, 0), (4, 1)]
    assert (response.stats.host_free_blocks, response.stats.swapped_sequences) == (2, 1)
    summary = worker.stub.InspectSequence(inspect_pb2.InspectSequenceRequest(pool=worker.pool, seq=2))
    assert summary.summary.state == inspect_pb2.SEQUENCE_STATE_SWAPPED
    assert list(summary.host_table) == [0, 1]
    worker.step(releases=[1])
    response = worker.step(resumes={2: 6})
    sources, destinations = zip(*moves(response.swaps_in), strict=True)
    assert sources == (0, 1)
    assert worker.tables[2] == list(destinations)  # six tokens and the next one: two blocks
    assert response.stats.host_free_blocks == 4


@pytest.mark.needs("HOST_TIER")
@pytest.mark.scenario("swap-02-infeasible")
def test_a_resume_that_can_never_be_served_is_rejected(attach):
    worker = attach(num_blocks=3, host_blocks=4, block_bytes=1)
    worker.admit(2, fresh(8, 100), priority=1)
    worker.step(advances={2: 12})
    response = worker.step(advances={2: 13})
    assert [(item.seq, item.needed, item.available) for item in response.rejected] == [(2, 4, 3)]
    worker.admit(4, fresh(8, 200), priority=1)
    worker.admit(5, fresh(3, 300))
    response = worker.step(advances={5: 5})
    assert victims(response) == {4: "SWAP"}
    response = worker.step(resumes={4: 12})  # twelve tokens and the next one need four blocks of three
    assert [(item.seq, item.needed, item.available) for item in response.rejected] == [(4, 4, 3)]
    assert response.stats.host_free_blocks == 4


@pytest.mark.needs("HOST_TIER")
def test_a_resume_waits_until_its_swap_out_has_completed(attach):
    worker = attach(num_blocks=4, host_blocks=4, block_bytes=1, swaps_on_own_stream=True)
    worker.admit(1, fresh(8, 1))
    worker.admit(2, fresh(7, 100))
    response = worker.step(advances={1: 9})
    assert victims(response) == {2: "SWAP"}
    assert waiting(response) == {1: "FENCE"}  # the sources are pinned until the swap has ended
    swapped_at = response.header.step
    response = worker.step(releases=[1], resumes={2: 7}, completed=swapped_at - 1)
    assert waiting(response) == {2: "SWAPPING"}
    assert list(grants(worker.step(resumes={2: 7}, completed=swapped_at))) == [2]


@pytest.mark.needs("HOST_TIER")
def test_where_swaps_run_in_the_order_of_the_steps_the_next_request_resumes(attach):
    """Nothing has completed yet: the swap-out of the step before runs before the swap-in of this one (rule 6)."""
    worker = attach(num_blocks=4, host_blocks=4, block_bytes=1)
    worker.admit(1, fresh(8, 1))
    worker.step(admits=[admit(2, fresh(7, 100))], completed=0)
    assert victims(worker.step(advances={1: 9}, completed=0)) == {2: "SWAP"}
    assert list(grants(worker.step(releases=[1], resumes={2: 7}, completed=0))) == [2]


@pytest.mark.needs("HOST_TIER")
@pytest.mark.parametrize(
    ("prefill", "copy", "mode"),
    [(10.0, 1e9, "SWAP"), (1e9, 10.0, "RECOMPUTE")],
)
def test_the_cheaper_mode_is_taken_and_both_prices_are_told(attach, prefill, copy, mode):
    """Seven tokens at ``prefill`` tokens/s, or two blocks of 1,000 bytes out and in at ``copy`` bytes/s."""
    rates = common_pb2.Rates(prefill_tokens_per_second=prefill, copy_bytes_per_second=copy)
    worker = attach(num_blocks=4, host_blocks=4, block_bytes=1_000, rates=rates)
    worker.admit(1, fresh(8, 1))
    worker.admit(2, fresh(7, 100))
    response = worker.step(advances={1: 9})
    assert victims(response) == {2: mode}
    told = response.preempted[0]
    assert told.recompute_seconds == pytest.approx(7 / prefill)
    assert told.swap_seconds == pytest.approx(2 * 2 * 1_000 / copy)
    records = worker.stub.InspectPool(inspect_pb2.InspectPoolRequest(pool=worker.pool)).recent_preemptions
    assert (records[-1].step, records[-1].preempted) == (response.header.step, told)


@pytest.mark.needs("HOST_TIER")
@pytest.mark.scenario("B33")
@pytest.mark.parametrize("host_blocks", [0, 1, 4])
def test_a_host_tier_that_is_full_or_off_means_recompute(attach, host_blocks):
    worker = attach(num_blocks=6, host_blocks=host_blocks, block_bytes=1)
    for seq in (1, 2, 3):
        worker.admit(seq, fresh(7, 100 * seq))
    first = worker.step(advances={1: 9})
    assert victims(first) == {3: "SWAP" if host_blocks == 4 else "RECOMPUTE"}
    second = worker.step(advances={1: 20})  # two more blocks, one is left
    assert victims(second) == {2: "SWAP" if host_blocks == 4 else "RECOMPUTE"}
    third = worker.step(advances={1: 24})
    assert list(grants(third)) == [1]


@pytest.mark.needs("HOST_TIER")
def test_the_least_recently_parked_is_dropped_for_another(attach):
    worker = attach(num_blocks=6, host_blocks=3, block_bytes=1)
    for seq in (1, 2, 3):
        worker.admit(seq, fresh(7, 100 * seq))
    assert victims(worker.step(advances={1: 9})) == {3: "SWAP"}
    response = worker.step(advances={1: 20}, resumes={3: 7})
    told = {item.seq: (item.mode, item.reason) for item in response.preempted}
    assert told == {
        3: (RECOMPUTE, steps_pb2.PREEMPTION_REASON_HOST_ROOM),
        2: (SWAP, steps_pb2.PREEMPTION_REASON_POOL),
    }
    assert list(response.waiting) == []  # its resume is skipped


@pytest.mark.needs("GROUPS")
@pytest.mark.scenario("fork-07-cow-oom")
def test_a_group_that_outgrows_the_pool_is_rejected_whole(attach):
    """Ours: two blocks, and a copy makes three; no other system state is left behind."""
    worker = attach(num_blocks=2)
    worker.admit(1, fresh(6, 1))
    response = worker.step(forks=[(1, [2], 6)], advances={2: 7, 1: 7})
    assert {item.seq: (item.needed, item.available) for item in response.rejected} == {1: (3, 2), 2: (3, 2)}
    assert worker.available() == 2


@pytest.mark.needs("GROUPS", "HOST_TIER")
def test_a_group_is_parked_and_comes_back_with_its_sharing(attach):
    worker = attach(num_blocks=6, host_blocks=6, block_bytes=1)
    worker.admit(1, fresh(6, 1), priority=1)
    worker.step(forks=[(1, [2], 6)])
    worker.step(advances={1: 7, 2: 7})
    worker.admit(3, fresh(11, 500))
    response = worker.step(advances={3: 13})
    assert victims(response) == {1: "SWAP", 2: "SWAP"}
    assert len(moves(response.swaps_out)) == 3  # one shared block moves once
    worker.step(releases=[3])
    worker.step(resumes={1: 7, 2: 7})
    assert worker.tables[1][0] == worker.tables[2][0]
    assert worker.tables[1][1] != worker.tables[2][1]


@pytest.mark.needs("GROUPS", "HOST_TIER")
@pytest.mark.parametrize("named", [{2: 30}, {3: 5}, {2: 30, 3: 5}])
def test_one_member_named_brings_back_each_at_its_own_length(attach, named):
    """30 tokens and the next one take ceil(31 / 4) = 8 blocks, 5 take ceil(6 / 4) = 2, whoever of them is named."""
    worker = attach(num_blocks=24, host_blocks=20, block_bytes=1)
    worker.admit(1, fresh(5, 1))
    worker.admit(2, fresh(30, 100))
    worker.step(forks=[(2, [3], 4)], advances={3: 5})
    assert victims(worker.step(advances={1: 92})) == {2: "SWAP", 3: "SWAP"}
    worker.step(releases=[1])
    response = worker.step(resumes=named)
    assert {seq: len(worker.tables[seq]) for seq in (2, 3)} == {2: 8, 3: 2}
    assert {seq: grant.granted_tokens for seq, grant in grants(response).items()} == {2: 30, 3: 5}
    assert worker.tables[2][0] == worker.tables[3][0]


@pytest.mark.needs("GROUPS", "HOST_TIER")
def test_a_short_member_named_does_not_cut_the_room_of_a_full_one(attach):
    """Member 2 has filled its eight blocks: its next token needs a ninth, also when only member 3 is named."""
    worker = attach(num_blocks=24, host_blocks=20, block_bytes=1)
    worker.admit(1, fresh(5, 1))
    worker.admit(2, fresh(32, 100))
    worker.step(forks=[(2, [3], 4)], advances={3: 5})
    worker.step(advances={1: 92})
    worker.step(releases=[1])
    worker.step(resumes={3: 5})
    assert len(worker.tables[2]) == 9


@pytest.mark.needs("GROUPS")
def test_a_recomputed_group_asks_for_the_room_of_all(attach):
    worker = attach(num_blocks=6)
    response = worker.admit(1, fresh(8, 1), again=True, beside_blocks=4)
    assert [(item.seq, item.needed, item.available) for item in response.rejected] == [(1, 7, 6)]
    response = worker.admit(1, fresh(8, 1), again=True, beside_blocks=3)
    assert list(grants(response)) == [1]


@pytest.mark.needs("WINDOWS")
@pytest.mark.scenario("swa-01-table")
def test_blocks_behind_the_window_become_null(attach):
    """Window 4, blocks of 2: block k goes once all its tokens lie below the next position - 3."""
    worker = attach(num_blocks=10, block_size=2, window=4)
    worker.admit(1, fresh(4, 1))
    nulls = {}
    for length in range(5, 13):
        worker.step(advances={1: length})
        worker.step(commits={1: (length - 1, [100 + length])})
        nulls[length - 1] = worker.tables[1].count(0)
    assert [nulls[computed] for computed in (4, 5, 6, 7, 11)] == [0, 1, 1, 2, 4]
    assert len(worker.tables[1]) == 6


@pytest.mark.needs("WINDOWS")
def test_a_windowed_hit_needs_only_what_the_window_sees(attach):
    worker = attach(num_blocks=12, block_size=2, window=4)
    prompt = fresh(9, 1)
    worker.admit(1, prompt)
    worker.step(releases=[1])
    grant = grants(worker.admit(2, prompt))[2]
    assert (grant.cached_tokens, list(grant.blocks)) == (8, [0, 0, 3, 4, 5])  # position 8 sees 5 to 8: blocks 2, 3, 4


@pytest.mark.needs("WINDOWS", "HOST_TIER")
def test_a_window_may_slide_for_a_sequence_that_gives_way_in_the_same_answer(attach):
    """Six blocks of 2, three each. At 6 committed of window 4 the first block slides, which frees one of three needed.

    So the order in which a worker applies the answer: the host table is made from the table with the null entry.
    """
    worker = attach(num_blocks=6, block_size=2, window=4, host_blocks=6, block_bytes=1)
    worker.admit(1, fresh(6, 1))
    worker.admit(2, fresh(6, 100))
    table = list(worker.tables[2])
    response = worker.step(advances={2: 12})
    replaced = response.replaced
    assert (list(replaced.seqs), list(replaced.indexes), list(replaced.blocks)) == ([2], [0], [0])
    assert victims(response) == {2: "SWAP"}
    place = dict(moves(response.swaps_out))
    assert list(place) == table[1:]
    shown = worker.stub.InspectSequence(inspect_pb2.InspectSequenceRequest(pool=worker.pool, seq=2))
    assert list(shown.host_table) == [2**32 - 1, *(place[block] for block in table[1:])]


@pytest.mark.needs("TENANT_LIMITS")
def test_a_tenant_stays_within_its_limits(attach):
    limits = [{"tenant": "a", "soft_blocks": 3, "hard_blocks": 4}]
    worker = attach(num_blocks=10, tenant_limits=limits)
    mine, other = common_pb2.PrefixRoot(tenant="a"), common_pb2.PrefixRoot(tenant="b")
    response = worker.admit(1, fresh(16, 1), root=mine)
    assert [(item.needed, item.available, item.reason) for item in response.rejected] == [
        (5, 4, steps_pb2.REJECTED_REASON_TENANT_LIMIT)
    ]
    worker.admit(2, fresh(7, 1), root=mine)
    response = worker.step(admits=[admit(3, fresh(5, 100), root=mine), admit(4, fresh(20, 200), root=other)])
    assert waiting(response) == {3: "TENANT_LIMIT"}  # two used and two more pass the soft limit while 2 runs
    assert list(grants(response)) == [4]  # only that tenant waits
    worker.admit(5, fresh(3, 300), root=mine)
    worker.step(advances={5: 5})
    response = worker.step(
        advances={2: 9}
    )  # a fifth block: its own tenant's worst rank gives way, with the pool half free
    assert {item.seq: item.reason for item in response.preempted} == {5: steps_pb2.PREEMPTION_REASON_TENANT_LIMIT}
    assert list(grants(response)) == [2]


@pytest.mark.needs("LATE_HITS")
def test_a_prompt_finds_what_another_has_filled_meanwhile(attach):
    """The example drawn in the design: equal prompts of 12 tokens, chunks of 8."""
    worker = attach(num_blocks=10)
    prompt = fresh(12, 1)
    response = worker.step(admits=[admit(1, prompt, num_tokens=8), admit(2, prompt, num_tokens=8)])
    first, second = grants(response)[1], grants(response)[2]
    assert (list(first.blocks), first.granted_tokens) == ([1, 2], 8)
    assert (list(second.blocks), second.cached_tokens, second.granted_tokens) == ([1, 2, 3], 8, 12)
    late = grants(worker.step(advances={1: 12}))[1]
    assert (late.first_index, list(late.blocks), late.cached_tokens, late.hit_blocks) == (2, [3], 11, 3)
    assert grants(worker.admit(3, prompt))[3].cached_tokens == 11


@pytest.mark.needs("ROOM_AHEAD")
@pytest.mark.scenario("grow-05-lookahead")
@pytest.mark.parametrize(("length", "room", "blocks"), [(4, 6, 2), (4, 8, 2), (4, 0, 1), (5, 6, 2), (4, 5, 2)])
def test_room_is_given_from_what_is_spare(attach, length, room, blocks):
    worker = attach(num_blocks=8)
    worker.admit(1, fresh(3, 1))
    response = worker.step(advances={1: length}, rooms=[room])
    assert len(worker.tables[1]) == blocks
    assert grants(response)[1].granted_tokens == length
    assert worker.hashed() == set()


@pytest.mark.needs("ROOM_AHEAD")
def test_room_takes_nobody_and_leaves_the_last_block(attach):
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(3, 1))
    worker.step(advances={1: 4}, rooms=[100])
    assert len(worker.tables[1]) == 3


@pytest.mark.needs("FAILED_STEPS")
def test_a_failed_step_takes_its_digests_back(attach, refused):
    worker = attach(num_blocks=8)
    worker.admit(1, fresh(8, 1))
    worker.step(advances={1: 9})
    worker.step(admits=[admit(2, fresh(8, 100))], completed=2)
    assert worker.hashed() == {1, 2, 4, 5}
    before = worker.state_digest()
    for bad in (
        {"releases": [1]},
        {"releases": [1, 2], "commits": {1: (8, [1])}},
        {"releases": [1, 2], "forks": [(1, [3], 8)]},
    ):
        with refused("INVALID_ARGUMENT", "LIVE_AFTER_FAILURE"):
            worker.step(failed_step=3, completed=3, **bad)
    for step in (0, 2, 4):
        with refused("INVALID_ARGUMENT", "OUT_OF_RANGE"):
            worker.step(failed_step=step, releases=[1, 2], completed=2)
    assert worker.state_digest() == before
    again = [admit(1, fresh(9, 1), again=True), admit(2, fresh(9, 100), again=True)]
    response = worker.step(failed_step=3, releases=[1, 2], completed=3, admits=again)
    assert grants(response)[1].cached_tokens == 8
    assert grants(response)[2].cached_tokens == 0
    assert copies(response) == []


@pytest.mark.needs("ADOPTION")
def test_a_manager_started_empty_takes_live_tables_over(attach):
    one = attach(num_blocks=10, host_blocks=4, block_bytes=1)
    prompt = fresh(9, 1)
    one.admit(1, prompt)
    one.step(advances={1: 10}, forks=[(1, [2], 9)])
    live = [
        {
            "seq": seq,
            "token_ids": b"".join(token.to_bytes(4, "little") for token in [*prompt, 50]),
            "computed_tokens": 9,
            "granted_tokens": 10,
            "table": table,
            "group": 1,
            "fork_tokens": 9,
        }
        for seq, table in ((1, one.tables[1]), (2, [1, 2, 7]))
    ]
    parked = {"seq": 3, "token_ids": bytes(4 * 6), "computed_tokens": 5, "granted_tokens": 8}
    parked |= {"host_table": [2, 0], "priority": 7}
    bare = {"seq": 4, "token_ids": bytes(8)}
    two = attach(num_blocks=10, host_blocks=4, block_bytes=1, step=2, live=[*live, parked, bare])
    assert (list(two.answer.adopted), list(two.answer.recompute)) == ([1, 2, 3], [4])
    assert two.answer.header.step == 2
    assert two.hashed() == {1, 2}
    assert two.ref_counts(1, 2, one.tables[1][2], 7) == [2, 2, 1, 1]
    assert two.matched(prompt) == 8
    assert two.answer.stats.host_free_blocks == 2
    two.tables.update({1: list(one.tables[1]), 2: [1, 2, 7]})
    response = two.step(advances={1: 11, 2: 11}, resumes={3: 6})
    assert sorted(moves(response.swaps_in))[0][0] == 0
    assert len(two.tables[3]) == 2


@pytest.mark.needs("ADOPTION")
@pytest.mark.parametrize(
    ("reason", "live"),
    [
        ("DUPLICATE_SEQUENCE", [{"seq": 1, "token_ids": bytes(4)}] * 2),
        ("OUT_OF_RANGE", [{"seq": 2**63, "token_ids": bytes(4)}]),
        ("EMPTY", [{"seq": 1}]),
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(40), "computed_tokens": 5, "table": [1]}]),
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(4), "computed_tokens": 2, "table": [1]}]),
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(4), "table": [11]}]),
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(4), "table": [0]}]),
        # Two blocks of 4: eight slots, and ids for one full block only.
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(28), "table": [1, 2], "fork_tokens": 9}]),
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(28), "table": [1, 2], "fork_tokens": 2**32 - 1}]),
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(28), "table": [1, 2], "hit_blocks": 2}]),
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(400), "table": [1, 2], "hit_blocks": 3}]),
        ("OUT_OF_RANGE", [{"seq": 1, "token_ids": bytes(28), "host_table": [0, 1], "fork_tokens": 9}]),
        ("WRONG_BLOCK", [{"seq": 1, "token_ids": bytes(40), "table": [1, 1]}]),
        (
            "WRONG_BLOCK",
            [
                {"seq": 1, "token_ids": pack([1, 1, 1, 1]), "computed_tokens": 4, "granted_tokens": 4, "table": [1]},
                {"seq": 2, "token_ids": pack([2, 2, 2, 2]), "computed_tokens": 4, "granted_tokens": 4, "table": [1]},
            ],
        ),
        # Two owners of half a block, in the pool and in the host tier, do not agree on its second token.
        *[
            (
                "WRONG_BLOCK",
                [
                    {"seq": seq, "token_ids": pack(ids), "computed_tokens": 6, "granted_tokens": 6, where: [1, 2]}
                    for seq, ids in ((1, [0, 1, 2, 3, 4, 5]), (2, [0, 1, 2, 3, 4, 9]))
                ],
            )
            for where in ("table", "host_table")
        ],
        # They agree on the block they share, not on what lies before it.
        (
            "WRONG_BLOCK",
            [
                {"seq": seq, "token_ids": pack(ids), "computed_tokens": 5, "granted_tokens": 5, "table": [seq, 3]}
                for seq, ids in ((1, [0, 1, 2, 3, 4]), (2, [0, 1, 2, 9, 4]))
            ],
        ),
        # The length granted lies from the computed one to the table's end, on the device and in the host tier.
        *[
            (
                "OUT_OF_RANGE",
                [{"seq": 1, "token_ids": bytes(28), "computed_tokens": 5, "granted_tokens": granted, where: [1, 2]}],
            )
            for where in ("table", "host_table")
            for granted in (0, 4, 9)
        ],
        (
            "WRONG_GROUP",
            [
                {"seq": 1, "token_ids": bytes(4), "table": [1], "group": 5},
                {"seq": 2, "token_ids": bytes(4), "table": [2], "group": 5, "priority": 1},
            ],
        ),
        (
            "WRONG_GROUP",
            [
                {"seq": 1, "token_ids": bytes(4), "table": [1], "group": 5},
                {"seq": 2, "token_ids": bytes(4), "table": [2], "group": 5, "root": {"tenant": "other"}},
            ],
        ),
    ],
)
def test_a_snapshot_that_cannot_be_is_refused(attach, refused, reason, live):
    with refused("INVALID_ARGUMENT", reason):
        attach(num_blocks=10, host_blocks=4, block_bytes=1, live=live)


@pytest.mark.needs("ADOPTION")
def test_two_owners_of_half_a_block_may_part_beyond_what_both_have_computed(attach):
    """Forked at 5 of 6 computed tokens: the child's sixth id is its own, and its write will go to a copy."""
    parent = {"seq": 1, "token_ids": pack([0, 1, 2, 3, 4, 5]), "computed_tokens": 6, "granted_tokens": 6}
    child = {"seq": 2, "token_ids": pack([0, 1, 2, 3, 4, 9]), "computed_tokens": 5, "granted_tokens": 5}
    rest = {"table": [1, 2], "group": 1, "fork_tokens": 5}
    worker = attach(num_blocks=10, live=[parent | rest, child | rest])
    assert list(worker.answer.adopted) == [1, 2]
    worker.tables.update({1: [1, 2], 2: [1, 2]})
    assert copies(worker.step(advances={2: 6})) == [(2, 3)]


@pytest.mark.needs("ADOPTION")
def test_what_is_said_of_a_table_may_reach_its_end(attach):
    """Seven ids in eight slots: forked at the last slot, one full block hit. The next write may lie behind the fork."""
    live = {"seq": 1, "token_ids": bytes(28), "computed_tokens": 7, "granted_tokens": 8, "table": [1, 2]}
    worker = attach(num_blocks=10, live=[live | {"fork_tokens": 8, "hit_blocks": 1}])
    worker.tables[1] = [1, 2]
    worker.step(advances={1: 9})
    assert len(worker.tables[1]) == 3
