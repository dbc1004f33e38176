"""What went wrong elsewhere, played against the target: pools under pressure, run to the end by a small scheduler."""

import pytest
from kv_scheduler import Job, Scheduler

from octavo.kv.v1 import common_pb2

pytestmark = pytest.mark.needs("PREEMPTION", "HOST_TIER", "GROUPS")


def whole(worker):
    """Nothing is held once everybody has ended."""
    worker.step()
    stats = worker.summary().stats
    assert stats.free_blocks + stats.cached_blocks == stats.num_blocks
    assert stats.host_free_blocks == stats.host_blocks
    assert (stats.running_sequences, stats.swapped_sequences) == (0, 0)


@pytest.mark.scenario("B17")
def test_recomputing_after_preemption_is_no_cache_hit(attach):
    """20 prompts of 64 tokens that share nothing; 12 blocks of 16 hold two of them as they grow to 80."""
    worker = attach(num_blocks=12, block_size=16)
    scheduler = Scheduler(worker, [Job(seq, 64, 80) for seq in range(1, 21)])
    scheduler.run(most_steps=2_000)
    totals = worker.summary().totals
    assert scheduler.counts["victims"] > 0
    assert (totals.hit_tokens, totals.lookup_tokens) == (0, 20 * 64)
    assert totals.readmitted_sequences == totals.recompute_preemptions == scheduler.counts["victims"]
    assert totals.readmitted_lookup_tokens > 0
    whole(worker)


@pytest.mark.scenario("B25")
@pytest.mark.parametrize("host_blocks", [0, 20])
def test_a_pool_far_too_small_lets_everybody_finish(attach, host_blocks):
    """10 blocks of 16, eight requests that each need 9 at their end: one at a time if need be.

    A readmission leaves a spare block for everyone who runs, so nobody comes back to be thrown out at once: no more
    victims than 8 requests times the 8 blocks that each has to grow by.
    """
    worker = attach(num_blocks=10, block_size=16, host_blocks=host_blocks, block_bytes=1)
    scheduler = Scheduler(worker, [Job(seq, 16, 140) for seq in range(1, 9)])
    scheduler.run(most_steps=8 * 140 + 500)
    assert sorted(scheduler.finished) == list(range(1, 9))
    print(f"host blocks {host_blocks}: {dict(scheduler.counts)}")
    assert scheduler.counts["victims"] <= 64
    whole(worker)


@pytest.mark.scenario("B27")
@pytest.mark.parametrize("regime", [common_pb2.REUSE_REGIME_ORDERED, common_pb2.REUSE_REGIME_FENCED])
def test_late_completion_takes_no_more_victims(attach, regime):
    """Steps are reported complete three steps late: one victim at most for an advance, and tokens flow."""
    worker = attach(num_blocks=10, block_size=4, reuse_regime=regime)
    scheduler = Scheduler(worker, [Job(seq, 8, 30) for seq in range(1, 7)], lag=3)
    scheduler.run(most_steps=1_500)
    assert scheduler.counts["victims"] > 0
    assert scheduler.counts["needless victims"] == 0
    worker.step()
    whole(worker)


@pytest.mark.scenario("B30", "B35")
@pytest.mark.parametrize("priorities", [(0, 0, 0, 0), (3, 2, 1, 0)])
def test_what_is_parked_does_not_hold_the_head_of_the_queue_up(attach, priorities):
    """Swaps on a stream of their own, three steps late; the pool holds one and a half requests."""
    worker = attach(num_blocks=9, block_size=4, host_blocks=40, block_bytes=1, swaps_on_own_stream=True)
    jobs = [Job(seq, 12, 24, priority=priority) for seq, priority in enumerate(priorities, start=1)]
    scheduler = Scheduler(worker, jobs, lag=3)
    scheduler.run(most_steps=600)
    assert scheduler.counts["swapped blocks"] > 0
    best = min(jobs, key=lambda job: (job.priority, job.seq))
    assert scheduler.finished[0] == best.seq
    worker.step()
    whole(worker)


@pytest.mark.scenario("B31", "B19")
@pytest.mark.parametrize("seed", range(5))
def test_nobody_waits_for_an_empty_pool(attach, seed):
    """Aborts at any moment: whenever nothing runs and every block is free, the next request is served at once."""
    worker = attach(num_blocks=12, block_size=4, host_blocks=12, block_bytes=1)
    jobs = [Job(seq, 4 + seq % 9, 14 + seq % 20, samples=1 + seq % 2) for seq in range(1, 25)]
    scheduler = Scheduler(worker, jobs, abort=0.02, seed=seed)
    while any(job.state != "done" for job in scheduler.jobs):
        stats = worker.summary().stats
        empty = stats.free_blocks + stats.cached_blocks == stats.num_blocks and not stats.swapped_sequences
        asked = any(job.state in ("new", "victim") and job.lead is None for job in scheduler.jobs)
        response = scheduler.step()
        if empty and asked and any(item for item in response.waiting):
            assert len(response.grants) > 0
        assert scheduler.counts["steps"] < 3_000
    whole(worker)


@pytest.mark.scenario("B34")
def test_parallel_samples_do_not_ping_pong_through_swap(attach):
    """16 device and 16 host blocks, 40 requests of two samples each.

    Each request holds 2 prompt blocks and 2 of its own per sample at its end; it may be parked a few times on the way,
    not once per token: at most 24 blocks moved per finished request. First come is first served, as far as it fits.
    """
    worker = attach(num_blocks=16, block_size=4, host_blocks=16, block_bytes=1)
    scheduler = Scheduler(worker, [Job(seq, 8, 16, samples=2) for seq in range(1, 41)])
    scheduler.run(most_steps=4_000)
    per_request = scheduler.counts["swapped blocks"] / 40
    order = [seq for seq in scheduler.finished if seq <= 40]
    late = max(abs(place - seq) for place, seq in enumerate(order, start=1))
    print(f"{per_request:.1f} blocks swapped per request, {late} places out of order at most, {dict(scheduler.counts)}")
    assert per_request <= 24
    assert late <= 4
    whole(worker)
