"""Swaps: preempted sequences wait in the host tier and come back with what they had computed."""

import pytest
import torch
from device_memory import lone_run
from scheduler_loop import Loop, assert_as_if_alone, limits, make_sequence

from kernels import PoolShape, allocate_host_pool, allocate_pool
from model_worker.engine.batch import Batch, Row
from model_worker.engine.host_tier import HostTier, NoHostTier, SwapFailed
from model_worker.engine.rates import MeasuredRates
from model_worker.engine.sequence import Sequence
from octavo.kv.v1 import steps_pb2

# 6 blocks of 4 hold 24 tokens; three requests of 4 + 16 tokens need 15 blocks in the end.
POOL = limits(num_blocks=6)


def three_requests(loop: Loop) -> list[Sequence]:
    requests = [make_sequence([i, i, i, i], max_tokens=16) for i in range(3)]
    for request in requests:
        loop.scheduler.add(request)
    return requests


@pytest.mark.unit
def test_a_swapped_sequence_comes_back_and_computes_nothing_twice() -> None:
    loop = Loop(POOL, reserve=False, host_blocks=12)
    requests = three_requests(loop)
    loop.drain()
    for request in requests:
        assert_as_if_alone(request)
    assert sum(one.timeline.swaps for one in requests) == loop.scheduler.statistics.swaps > 0
    assert sum(one.timeline.recomputes for one in requests) == 0
    # 3 x 20 tokens of which the last is never written: all but those are computed once.
    assert loop.scheduler.statistics.computed_tokens == 3 * 19
    assert requests[0].timeline.swaps == 0  # the best-ranked one never gives way
    loop.assert_whole()


@pytest.mark.unit
def test_who_is_dropped_from_the_host_tier_is_recomputed() -> None:
    # The two that give way hold up to 4 blocks each, the host tier takes only one of them.
    loop = Loop(POOL, reserve=False, host_blocks=4)
    requests = three_requests(loop)
    loop.drain()
    for request in requests:
        assert_as_if_alone(request)
    dropped = [
        victim
        for answer in loop.answers
        for victim in answer.preempted
        if victim.reason == steps_pb2.PREEMPTION_REASON_HOST_ROOM
    ]
    assert len(dropped) > 0
    assert sum(one.timeline.recomputes for one in requests) >= len(dropped)
    loop.assert_whole()


@pytest.mark.unit
def test_a_parked_sequence_that_is_aborted_gives_its_host_blocks_back() -> None:
    loop = Loop(POOL, reserve=False, host_blocks=12)
    requests = three_requests(loop)
    while not loop.scheduler.parked:
        loop.turn()
    (parked,) = loop.scheduler.parked.values()
    assert loop.scheduler.abort(parked)
    loop.drain()
    assert [one.tokens == lone_run([i] * 4, 20) for i, one in enumerate(requests)].count(True) == 2
    loop.assert_whole()


@pytest.mark.unit
def test_swaps_behind_the_steps_are_waited_for() -> None:
    """B35: the copy of a victim's blocks is slow, and its blocks go to somebody else at once if nobody takes care."""
    loop = Loop(POOL, reserve=False, host_blocks=12, late_swaps=True)
    loop.flush_every = 7
    requests = three_requests(loop)
    loop.drain()  # the memory refuses a write to a block that is still being copied, and every wrong read
    for request in requests:
        assert_as_if_alone(request)
    assert loop.scheduler.statistics.swaps > 0
    told = [(request.step, request.completed_step) for request in loop.requests]
    # Somewhere the report lags behind the last step run, two before the one asked for, until the copy has ended.
    assert any(completed < step - 2 for step, completed in told)
    loop.assert_whole()


@pytest.mark.unit
@pytest.mark.parametrize("late_swaps", [False, True])
def test_a_parked_sequence_is_adopted_with_its_host_blocks(late_swaps: bool) -> None:
    loop = Loop(POOL, reserve=False, host_blocks=12, late_swaps=late_swaps)
    requests = three_requests(loop)
    while not loop.scheduler.parked:
        loop.turn()
    loop.lose_manager(answered=False, steps_in_hand=2)
    assert len(loop.scheduler.parked) == 1
    loop.drain()
    for request in requests:
        assert_as_if_alone(request)
    assert sum(one.timeline.recomputes for one in requests) == 0
    assert loop.scheduler.statistics.computed_tokens == 3 * 19
    loop.assert_whole()


@pytest.mark.unit
def test_two_who_share_a_block_and_are_parked_in_one_step_have_a_copy_each() -> None:
    """Two of one token cross a block's edge in one step, and two behind them, who share their first block, give way."""
    loop = Loop(limits(num_blocks=5), reserve=False, host_blocks=8)
    requests = [make_sequence(prompt, max_tokens=12) for prompt in ([7], [8], [1, 1, 1, 1, 2], [1, 1, 1, 1, 3])]
    for request in requests[:3]:
        loop.scheduler.add(request)
    loop.turn()
    loop.turn()
    loop.scheduler.add(requests[3])
    while len(loop.scheduler.parked) < 2:
        loop.turn()
    sources = list(loop.answers[-1].swaps_out.sources)
    assert len(sources) == 4
    assert len(set(sources)) == 3
    one, two = (parked.host_table for parked in loop.scheduler.parked.values())
    assert one is not None
    assert two is not None
    assert not {*one} & {*two}
    loop.lose_manager(answered=True, steps_in_hand=1)
    loop.drain()
    for request in requests:
        assert_as_if_alone(request)
    loop.assert_whole()


@pytest.mark.unit
def test_blocks_survive_the_host_tier_byte_for_byte() -> None:
    shape = PoolShape(num_blocks=4, num_layers=2, num_kv_heads=1, block_size=4, head_dim=8, dtype=torch.float32)
    pool, host = allocate_pool(shape, torch.device("cpu")), allocate_host_pool(shape, 3, pinned=False)
    tier = HostTier(pool, host)
    assert tier.bytes_per_second > 0
    pool[1:] = torch.randn(pool[1:].shape, generator=torch.Generator().manual_seed(1))
    before = pool.clone()
    # Out first, then in: block 2 is parked and at once filled with what was parked as host block 0 in the step before.
    tier.run(Batch(1, [], swaps_out=[(1, 0)]))
    tier.run(Batch(2, [], swaps_out=[(2, 2), (3, 1)], swaps_in=[(0, 2)]))
    assert torch.equal(pool[2], before[1])
    tier.run(Batch(3, [], swaps_in=[(2, 1), (1, 4)]))
    assert torch.equal(pool[1], before[2])
    assert torch.equal(pool[4], before[3])
    assert tier.completed(3) == 3


@pytest.mark.unit
def test_a_pool_without_a_host_tier_runs_no_swap() -> None:
    with pytest.raises(SwapFailed, match="step 5 swaps"):
        NoHostTier().run(Batch(5, [], swaps_out=[(1, 0)]))


@pytest.mark.unit
def test_rates_are_told_once_both_are_known_and_again_when_one_has_moved_by_a_quarter() -> None:
    rates = MeasuredRates()
    prompt = make_sequence(list(range(100)), max_tokens=1)
    rates.see_step(Batch(1, [Row(prompt, 0, 100, samples=True)]), seconds=0.1)
    assert rates.news() is None
    rates.copy = 1e9
    told = rates.news()
    assert told is not None
    assert (told.prefill_tokens_per_second, told.copy_bytes_per_second) == (pytest.approx(1000), 1e9)
    assert rates.news() is None
    # A decode says nothing about prefill.
    rates.see_step(Batch(2, [Row(prompt, 99, 100, samples=True)]), seconds=10.0)
    assert rates.prefill == pytest.approx(1000)
    rates.copy = 1.3e9
    assert rates.news() is not None
