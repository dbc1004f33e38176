"""Kinds of failure beside the published cases: what is counted twice, what crosses from pool to pool, what is lost."""

import queue

import pytest
from kv_fake_worker import admit, fresh, grants, waiting

from octavo.kv.v1 import steps_pb2, watch_pb2


def test_a_prompt_that_waits_is_counted_when_it_is_served(attach):
    """Asked five times, served once: 8 tokens looked up, the 4 of a whole block hit; a refusal counts for nothing."""
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(4, 1))
    worker.step(releases=[1])
    worker.admit(2, fresh(9, 100))
    before = worker.summary().totals
    asked = admit(3, [*fresh(4, 1), *fresh(4, 200)])
    for _ in range(4):
        assert waiting(worker.step(admits=[asked])) == {3: "POOL"}
    assert worker.summary().totals == before
    response = worker.step(releases=[2], admits=[asked])
    assert grants(response)[3].cached_tokens == 4
    after = worker.summary().totals
    assert (after.lookup_tokens - before.lookup_tokens, after.hit_tokens - before.hit_tokens) == (8, 4)
    assert after.admitted_sequences - before.admitted_sequences == 1


def test_pools_know_nothing_of_each_other(attach):
    """Same model, same prompt: no hit, no eviction and no reset reaches another pool."""
    one, other = (attach(num_blocks=6, model_fingerprint="m") for _ in range(2))
    prompt = fresh(8, 1)
    for worker in (one, other):
        worker.admit(1, prompt)
    assert one.admit(2, prompt).grants[0].cached_tokens == 7
    assert other.summary().totals.hit_tokens == 0
    for worker in (one, other):
        worker.step(releases=[1] if worker is other else [1, 2])
        worker.step()
    digest = other.state_digest()
    one.reset()
    one.admit(3, fresh(20, 500))
    assert one.matched(prompt) == 0
    assert other.matched(prompt) == 7
    assert other.state_digest() == digest


@pytest.mark.needs("PREEMPTION")
def test_a_victim_that_is_released_instead_of_coming_back_is_gone(attach):
    """Its client left meanwhile. The manager forgot it already: accepted, no effect, and its id stays old."""
    worker = attach(num_blocks=4)
    worker.step(admits=[admit(1, fresh(7, 1)), admit(2, fresh(7, 100))])
    response = worker.step(advances={1: 9})
    assert [(item.seq, item.mode) for item in response.preempted] == [(2, steps_pb2.PREEMPTION_MODE_RECOMPUTE)]
    stats = worker.summary().stats
    assert worker.step(releases=[2]).stats == stats
    assert worker.step(releases=[2]).stats == stats


def test_a_second_worker_does_not_take_a_living_pool(attach, refused):
    """By mistake two workers have one pool's name. The first goes on; the second may have it once the first is gone."""
    first = attach(pool="one name", num_blocks=8, worker_id="A")
    asked = queue.SimpleQueue()
    answers = first.stub.Steps(iter(asked.get, None), timeout=60)
    for step in (1, 2):
        asked.put(first.request())
        assert next(answers).header.step == step
        first.step_number = step
        with refused("FAILED_PRECONDITION", "POOL_IN_USE") as info:
            attach(pool="one name", num_blocks=8, worker_id="B")
        assert info.metadata["worker_id"] == "A"
    asked.put(None)
    assert list(answers) == []
    second = attach(pool="one name", num_blocks=8, worker_id="B")
    first.attached = False
    assert second.epoch > first.epoch


def test_two_streams_of_a_worker_share_its_steps(attach, refused):
    """A second stream goes on where the first stands; the pool is its worker's until both have ended."""
    worker = attach(pool="two streams", num_blocks=8, worker_id="A")
    streams = []
    for _ in range(2):
        asked = queue.SimpleQueue()
        streams.append((asked, worker.stub.Steps(iter(asked.get, None), timeout=60)))
    for step, (asked, answers) in enumerate([streams[0], streams[1], streams[0]], start=1):
        request = worker.request()
        asked.put(request)
        assert next(answers).header.step == step
        worker.step_number = step
    streams[1][0].put(request)
    assert next(streams[1][1]).header.step == 3  # the stored answer
    streams[0][0].put(None)
    assert list(streams[0][1]) == []
    with refused("FAILED_PRECONDITION", "POOL_IN_USE"):
        attach(pool="two streams", num_blocks=8, worker_id="B")
    streams[1][0].put(None)
    assert list(streams[1][1]) == []
    worker.attached = False
    attach(pool="two streams", num_blocks=8, worker_id="B")


def test_a_pool_without_a_stream_is_anybodys_and_a_worker_takes_its_own_over(attach, refused):
    """The lease of a worker that calls Step alone keeps the pool from being dropped, not from another Attach."""
    first = attach(pool="unary", num_blocks=8, worker_id="A")
    first.step()
    second = attach(pool="unary", num_blocks=8, worker_id="B")
    with refused("FAILED_PRECONDITION", "STALE_EPOCH"):
        first.step()
    first.attached = False
    asked = queue.SimpleQueue()
    answers = second.stub.Steps(iter(asked.get, None), timeout=60)
    asked.put(second.request())
    assert next(answers).header.step == 1
    third = attach(pool="unary", num_blocks=8, worker_id="B")  # the same process, its own stream still open
    assert third.epoch > second.epoch
    second.attached = False
    asked.put(None)


@pytest.mark.needs("FENCED_REUSE", "RESET")
@pytest.mark.parametrize(("regime", "completed"), [(1, 0), (2, 1)])
def test_a_cache_is_reset_once_no_block_is_fenced(attach, refused, regime, completed):
    """Never while a sequence lives. Released in step 2: at once where the device works in order, else after step 1."""
    worker = attach(num_blocks=8, reuse_regime=regime)
    worker.admit(1, fresh(8, 1))
    with refused("FAILED_PRECONDITION", "CACHE_IN_USE"):
        worker.reset()
    worker.step(releases=[1], completed=0)
    for told in range(completed):
        with refused("FAILED_PRECONDITION", "CACHE_IN_USE"):
            worker.reset()
        worker.step(completed=told + 1)
    assert worker.reset().cleared_blocks == 2


@pytest.mark.needs("WATCH", "FAILED_STEPS")
def test_what_a_failed_step_wrote_is_never_told(attach):
    worker = attach(num_blocks=8)
    watch = worker.stub.Watch(watch_pb2.WatchRequest(pool=worker.pool), timeout=60)
    assert next(watch).snapshot.last
    worker.admit(1, fresh(4, 1))
    worker.step(admits=[admit(2, fresh(4, 100))])  # step 1 has completed; step 2 fails
    first = next(watch)
    worker.step(failed_step=2, releases=[1, 2], completed=2)
    worker.admit(3, fresh(4, 200))
    worker.step()
    second = next(watch)
    assert (first.header.step, second.header.step) == (2, 5)
    assert worker.matched([*fresh(4, 1), 9]) == worker.matched([*fresh(4, 200), 9]) == 4
    assert worker.matched([*fresh(4, 100), 9]) == 0
    watch.cancel()
