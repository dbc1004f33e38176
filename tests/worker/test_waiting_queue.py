"""The order of the queue: aged priority, preempted first, arrival."""

import pytest
from scheduler_loop import make_sequence

from model_worker.engine.queue import LOOKS_PER_LEVEL, WaitingQueue
from model_worker.engine.sequence import Sequence

AGEING = 8.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(priority: int = 0) -> Sequence:
    return make_sequence([1], max_tokens=1, priority=priority)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WaitingQueue:
    return WaitingQueue(clock, AGEING)


@pytest.mark.unit
def test_priority_then_preempted_then_arrival(queue: WaitingQueue) -> None:
    late, first, second, urgent, again = request(1), request(), request(), request(-1), request()
    again.again = True
    for one in (second, late, urgent, first, again):
        queue.add(one)
    assert list(queue) == [urgent, again, first, second, late]


@pytest.mark.unit
def test_whoever_has_waited_long_goes_ahead_of_better_priorities_that_came_later(
    queue: WaitingQueue, clock: Clock
) -> None:
    # 2 levels apart: after 2 x 8 s, and an eighth of a level to notice, the older one goes first.
    old = request(priority=2)
    queue.add(old)
    clock.now += 2 * AGEING - 0.5
    queue.refresh()
    queue.add(just_before := request())
    assert queue.head is just_before
    clock.now += 0.5 + AGEING / LOOKS_PER_LEVEL
    queue.refresh()
    queue.add(request())
    assert queue.pop() is old
    assert old.level == 0


@pytest.mark.unit
def test_time_counts_only_in_the_queue_and_is_kept(queue: WaitingQueue, clock: Clock) -> None:
    one = request(priority=3)
    queue.add(one)
    clock.now += AGEING
    queue.refresh()
    assert queue.pop().level == 2
    queue.leave(one)
    clock.now += 5 * AGEING  # it runs
    queue.add(one)
    assert one.level == 2
    queue.pop()
    clock.now += AGEING  # asked for and refused
    queue.add(one)
    assert one.level == 1
