"""The engine's thread on a device memory that sees every wrong read, with the real manager core beside it."""

import contextlib
import queue
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from device_memory import DeviceMemory
from in_process_manager import InProcessManager
from scheduler_loop import assert_as_if_alone, limits, make_sequence

from model_worker.engine.batch import Batch, Limits
from model_worker.engine.engine import SWAP_FAILURES, Engine
from model_worker.engine.host_tier import NoHostTier, SwapFailed
from model_worker.engine.progress import Progress
from model_worker.engine.sequence import Sequence
from model_worker.sampling.results import StepOutput
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, steps_pb2

pytestmark = pytest.mark.unit

# 6 blocks of 4 hold 24 tokens; requests of 4 + 16 tokens take 5 each in the end, so they park each other.
POOL = limits(num_blocks=6)


class Device:
    """Runs batches, swaps included; what happens is written to a log."""

    def __init__(self, limits: Limits, log: list[str], seconds: float) -> None:
        self.memory = DeviceMemory(limits.num_blocks, limits.block_size)
        self.log = log
        self.seconds = seconds

    def run(self, batch: Batch) -> StepOutput:
        self.log.append(f"run {batch.step}")
        time.sleep(self.seconds)
        return self.memory.run(batch)


class Swaps(NoHostTier):
    """Moves nothing, since the device does; fails a share of the steps that load blocks."""

    def __init__(self, failing: float) -> None:
        self.failing = failing
        self.dice = random.Random(1)

    def run(self, batch: Batch) -> None:
        if batch.swaps_in and self.dice.random() < self.failing:
            raise SwapFailed("the store did not answer")


class LoggedManager(InProcessManager):
    """Writes down when a request is sent and when its answer is taken."""

    def __init__(self, log: list[str], lease_seconds: float) -> None:
        super().__init__()
        self.log = log
        self.lease_seconds = lease_seconds
        self.host_blocks: list[int] = []

    def attach(self, parts: object) -> attach_pb2.AttachResponse:
        listed = list(parts)  # type: ignore[call-overload]
        self.host_blocks.append(listed[0].pool.host_blocks)
        answer = super().attach(listed)
        answer.lease_ms = round(self.lease_seconds * 1000)
        return answer

    def send(self, request: steps_pb2.StepRequest) -> None:
        self.log.append(f"send {request.step}")
        super().send(request)

    def receive(self) -> steps_pb2.StepResponse:
        answer = super().receive()
        self.log.append(f"receive {answer.header.step}")
        return answer


class Bench:
    """A running engine."""

    def __init__(
        self,
        host_blocks: int = 0,
        failing: float = 0.0,
        pool: Limits = POOL,
        lease_seconds: float = 10.0,
        step_seconds: float = 0.0,
    ) -> None:
        self.log: list[str] = []
        self.manager = LoggedManager(self.log, lease_seconds)
        self.progress: queue.SimpleQueue[list[Progress]] = queue.SimpleQueue()
        self.failures: list[bool] = []
        self.engine = Engine(
            spec=attach_pb2.PoolSpec(
                pool="p",
                worker_id="w",
                num_blocks=pool.num_blocks,
                block_size=pool.block_size,
                block_bytes=1024,
                host_blocks=host_blocks,
                model_fingerprint="m",
                reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
            ),
            limits=pool,
            runner=Device(pool, self.log, step_seconds),  # type: ignore[arg-type]
            manager=self.manager,
            emit=self.progress.put,
            on_ready=lambda ready, state: None,
            on_failure=lambda: self.failures.append(True),
            swaps=Swaps(failing),
        )

    def generate(self, *requests: Sequence) -> None:
        """Run requests to their ends."""
        for request in requests:
            self.engine.submit(request)
        left = len(requests)
        while left:
            left -= sum(one.ended is not None for one in self.progress.get(timeout=60))


@contextlib.contextmanager
def bench(**changes: Any) -> Iterator[Bench]:
    made = Bench(**changes)
    made.engine.start()
    try:
        yield made
    finally:
        made.engine.stop()
    assert made.failures == []


def test_the_manager_works_while_the_device_does() -> None:
    """Rule 7: the request for step k+1 is out before step k runs, and its answer is taken after it."""
    with bench() as running:
        running.generate(make_sequence([1, 2, 3, 4], max_tokens=10))
    sent = [place for place, entry in enumerate(running.log) if entry.startswith("send")]
    overlapped = [place for place in sent if running.log[place + 1].startswith("run")]
    for place in overlapped:
        step = int(running.log[place].split()[1])
        assert running.log[place : place + 3] == [f"send {step}", f"run {step - 1}", f"receive {step}"]
    assert len(overlapped) >= 5


def test_the_manager_is_asked_only_when_there_is_something_to_say() -> None:
    """Rule 7: a step goes on while its slots last.

    64 tokens from a prompt of 4 in blocks of 16: four edges, at each of which a block is asked for, one is committed a
    step later, and two empty requests tell of their ends; 64 steps run.
    """
    alone = limits(num_blocks=8, block_size=16)
    with bench(pool=alone) as running:
        running.generate(make_sequence([1, 2, 3, 4], max_tokens=64))
    runs = [entry for entry in running.log if entry.startswith("run")]
    assert len(runs) == 64
    assert len(set(runs)) <= 4 * 4 + 4
    first, *_, last = runs
    asked = running.log[running.log.index(first) : running.log.index(last)]
    assert sum(entry.startswith("send") for entry in asked) <= 4 * 4 + 2


def test_a_quiet_worker_keeps_its_lease() -> None:
    """A long decode inside one block speaks every third of the lease, here of 60 ms: with 200 steps of 1 ms at least 10
    times, less the ends. On a busy machine steps take longer, and so more of them speak, but not more often."""
    alone = limits(num_blocks=8, block_size=256)
    with bench(pool=alone, lease_seconds=0.06, step_seconds=0.001) as running:
        began = time.monotonic()
        running.generate(make_sequence([1, 2, 3, 4], max_tokens=200))
        thirds = (time.monotonic() - began) / 0.02
    runs = [place for place, entry in enumerate(running.log) if entry.startswith("run")]
    sends = sum(entry.startswith("send") for entry in running.log[runs[0] : runs[-1]])
    assert 7 <= sends <= thirds + 4


def test_a_worker_is_ready_when_a_second_one_would_be_refused() -> None:
    """Nobody has a request, and the lease's first third, 200 s, lies far ahead: the step that holds the pool is sent
    right after the Attach, or whoever attaches meanwhile would take it."""
    running = Bench(lease_seconds=600.0)
    ready: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    running.engine.on_ready = lambda is_ready, state: ready.put(list(running.log))
    running.engine.start()
    try:
        assert ready.get(timeout=60) == ["send 1", "receive 1"]
    finally:
        running.engine.stop()


def test_who_cannot_be_loaded_is_recomputed() -> None:
    """B56: a third of the loads fail; the texts are right, the failures are counted, and the engine goes on."""
    requests = [make_sequence([i, i, i, i], max_tokens=16) for i in range(12)]
    with bench(host_blocks=12, failing=0.3) as running:
        running.generate(*requests)
        statistics = running.engine.statistics
        assert statistics.swap_failures > 0
        assert statistics.swaps > 0
        assert statistics.reattaches == statistics.swap_failures
        running.generate(late := make_sequence([9, 9], max_tokens=4))
    for request in [*requests, late]:
        assert_as_if_alone(request)


def test_a_host_tier_that_always_fails_is_given_up() -> None:
    requests = [make_sequence([i, i, i, i], max_tokens=16) for i in range(8)]
    with bench(host_blocks=12, failing=1.0) as running:
        running.generate(*requests)
        assert running.engine.statistics.swap_failures == SWAP_FAILURES
    assert running.manager.host_blocks == [12] * SWAP_FAILURES + [0]
    for request in requests:
        assert_as_if_alone(request)


def test_a_manager_that_forks_nothing_is_noticed() -> None:
    running = Bench(host_blocks=0, failing=0.0)
    without = running.manager.capabilities() - {inspect_pb2.CAPABILITY_FORK}
    running.manager.capabilities = lambda: without  # type: ignore[method-assign]
    running.engine.start()
    running.generate(make_sequence([1, 2], max_tokens=2))
    running.engine.stop()
    assert not running.engine.forks


def test_an_abort_is_heard_within_two_steps() -> None:
    with bench() as running:
        request = make_sequence([1, 2, 3], max_tokens=20)
        running.engine.submit(request)
        running.progress.get(timeout=60)
        running.engine.abort(request)
        ran = request.timeline.steps
        while not any(one.ended is not None for one in running.progress.get(timeout=60)):
            pass
        running.generate(make_sequence([7, 7, 7], max_tokens=3))
    # The step launched when the abort came, and the one asked for then; none of them after it was heard. Its own steps:
    # not each of them is one of the manager's.
    assert request.timeline.steps <= ran + 2
