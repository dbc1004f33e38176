"""Workers come, load their pools and vanish, by the hundred: the manager stays as small as it was.

Memory is judged by straight lines through the resident size after each cycle, least squares, the first third left out.
Allocators grow in steps, when a busy moment keeps more alive at once, and one step is no leak: a leak shows in the
second third and in the last one, so the smaller of their slopes counts.
"""

import itertools
import queue
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from kv_fake_worker_process import requests, spec
from kv_refusals import Refusal

from octavo.kv.v1 import attach_pb2, inspect_pb2, steps_pb2, watch_pb2

pytestmark = pytest.mark.e2e

FAKE_WORKER = Path(__file__).with_name("kv_fake_worker_process.py")
LEASE_SECONDS = 2.5
"""A client on a busy machine may take a while from its Attach to its first step."""
AT_ONCE = 100
"""Pools alive at any moment, so that how many there are is not left to how fast a machine makes them."""
SLACK_SECONDS = 60
"""A lease counts from the end of a stream and ticks come at a quarter of it; the rest is for a busy machine."""
SOAK_LEASE_SECONDS = 3.0
"""In thousands of cycles one may take a second."""
QUIET = ("--metrics", "", "--log-level", "error", "--lease-seconds")
"""Nobody reads the log here, and a warning per dropped pool fills a pipe within hundreds of cycles."""


def attach(stub, pool):
    return stub.Attach(iter([attach_pb2.AttachRequest(pool=spec(pool))])).header.epoch


def pools(stub):
    return {pool.header.pool: pool for pool in stub.ListPools(inspect_pb2.ListPoolsRequest()).pools}


def until_gone(stub, names, seconds):
    """Ask until none of the pools is left; how long it took."""
    began = time.monotonic()
    while left := pools(stub).keys() & names:
        assert time.monotonic() - began < seconds, f"{sorted(left)} outlived their leases"
    return time.monotonic() - began


def slope(sizes):
    """Bytes per cycle, the smaller of two thirds; of few cycles, those of the last two thirds together."""
    third = len(sizes) // 3
    parts = [sizes[third : 2 * third], sizes[2 * third :]] if third > 3 else [sizes[third:]]
    return min(statistics.linear_regression(range(len(part)), part).slope for part in parts)


@pytest.mark.parametrize(
    ("leak", "step", "found"), [(0, 0, 0), (100, 0, 100), (0, 2_000_000, 0), (100, 2_000_000, 100)]
)
def test_a_step_is_told_from_a_leak(leak, step, found):
    """40 cycles, the step in the middle of the last third."""
    sizes = [50_000_000 + leak * cycle + step * (cycle > 33) for cycle in range(40)]
    assert slope(sizes) == pytest.approx(found)


def drop_connections(manager, cycles, lease_seconds, most_bytes_per_cycle):
    """One cycle: a pool, a watcher of it, 20 steps over a stream, and the connection of both dropped in the middle."""
    sizes = []
    for cycle in range(cycles):
        pool = f"cycle-{cycle}"
        while len(pools(manager.stub)) >= AT_ONCE:
            pass
        with grpc.insecure_channel(manager.grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = manager.stub.__class__(channel)
            epoch = attach(stub, pool)
            assert next(stub.Watch(watch_pb2.WatchRequest(pool=pool))).HasField("snapshot")
            answers = stub.Steps(requests(pool, epoch))
            for _ in itertools.islice(answers, 20):
                pass
        sizes.append(manager.resident_bytes())
    last = {f"cycle-{cycle}" for cycle in range(cycles)}
    took = until_gone(manager.stub, last, seconds=2 * lease_seconds + SLACK_SECONDS)
    found = slope(sizes)
    print(
        f"{cycles} connections dropped: resident {sizes[0] / 1e6:.1f} -> {sizes[-1] / 1e6:.1f} MB, "
        f"{found:.0f} bytes per cycle, last pool gone after {took:.2f} s, lease {lease_seconds} s"
    )
    assert found < most_bytes_per_cycle


def test_dropped_connections_leave_nothing(run_manager):
    """A pool kept would cost 512 * 28 bytes for its blocks and about 60 kB for its cache.

    300 cycles are over in a few leases, so how many pools live at once moves the size by some kB a cycle either way:
    that no stream stays, a few kB each, is what 10,000 show.
    """
    with run_manager(*QUIET, str(LEASE_SECONDS)) as manager:
        drop_connections(manager, 300, LEASE_SECONDS, most_bytes_per_cycle=30_000)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_ten_thousand_dropped_connections_leave_nothing(run_manager):
    """The resident size is a high-water mark: it still steps up when a busy moment keeps more pools alive at once."""
    with run_manager(*QUIET, str(SOAK_LEASE_SECONDS)) as manager:
        drop_connections(manager, 10_000, SOAK_LEASE_SECONDS, most_bytes_per_cycle=500)


def kill_workers(manager, kills, at_once):
    """Fake workers killed with SIGKILL in full flight, some at a time; each pool is dropped when its lease is over."""
    sizes, waits = [], []
    for first in range(0, kills, at_once):
        names = [f"worker-{index}" for index in range(first, min(first + at_once, kills))]
        workers = [
            subprocess.Popen([sys.executable, str(FAKE_WORKER), manager.grpc, name], stdout=subprocess.PIPE, text=True)
            for name in names
        ]
        for worker in workers:
            assert worker.stdout.readline() == "loaded\n"
        assert pools(manager.stub).keys() >= set(names)
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
        waits.append(until_gone(manager.stub, set(names), seconds=2 * LEASE_SECONDS + SLACK_SECONDS))
        sizes.append(manager.resident_bytes())
    per_kill = slope(sizes) / at_once
    print(
        f"{kills} workers killed: resident {sizes[0] / 1e6:.1f} -> {sizes[-1] / 1e6:.1f} MB, {per_kill:.0f} bytes per "
        f"worker; pools gone after {statistics.median(waits):.2f} s (median), {max(waits):.2f} s at most; "
        f"lease {LEASE_SECONDS} s"
    )
    return per_kill, waits


def test_killed_workers_leave_nothing(run_manager):
    with run_manager(*QUIET, str(LEASE_SECONDS)) as manager:
        per_kill, waits = kill_workers(manager, 20, at_once=5)
        # Four points make no regression; that no pool stays is what 20 can show.
        assert per_kill < 200_000
        assert statistics.median(waits) >= LEASE_SECONDS / 2, "a pool was dropped before its lease was over"


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_two_hundred_killed_workers_leave_nothing(run_manager):
    with run_manager(*QUIET, str(LEASE_SECONDS)) as manager:
        per_kill, waits = kill_workers(manager, 200, at_once=5)
        assert per_kill < 4_000
        assert statistics.median(waits) >= LEASE_SECONDS / 2


def test_a_paused_manager_drops_nobody(run_manager):
    """Stopped for 5 s with leases of 4.5 s: pools with a stream, without one, and heard only during the pause."""
    with run_manager("--metrics", "", "--lease-seconds", "4.5") as manager:
        stub = manager.stub
        epochs = {name: attach(stub, name) for name in ("streamed", "unary", "fresh")}
        steps = {name: requests(name, epoch) for name, epoch in epochs.items()}
        answers = stub.Steps(steps["streamed"])
        assert next(answers).header.step == 1
        stub.Step(next(steps["unary"]))
        manager.process.send_signal(signal.SIGSTOP)
        pending = stub.Step.future(next(steps["unary"]))
        time.sleep(5)  # the pause itself
        manager.process.send_signal(signal.SIGCONT)
        assert pending.result(timeout=60).header.step == 2
        assert pools(stub).keys() == set(epochs)
        assert next(answers).header.step > 1
        assert stub.Step(next(steps["fresh"])).header.step == 1
        answers.cancel()


def test_a_stream_holds_the_lease_from_its_first_answer_on(run_manager):
    """Three pools, leases of 2 s. One stream was answered once, one has said nothing, one pool has no stream at all.

    A stream that has said nothing names no pool, so it can hold none: its pool goes with the one that has no stream.
    """
    with run_manager(*QUIET, "2") as manager:
        stub = manager.stub
        epochs = {name: attach(stub, name) for name in ("answered", "silent", "alone")}
        held = stub.Steps(itertools.chain([next(requests("answered", epochs["answered"]))], Handed()))
        assert next(held).header.step == 1
        silent = stub.Steps(iter(Handed()))
        until_gone(stub, {"silent", "alone"}, seconds=SLACK_SECONDS)
        shown = pools(stub)
        assert shown.keys() == {"answered"}
        assert shown["answered"].connected
        held.cancel()
        silent.cancel()
        until_gone(stub, {"answered"}, seconds=SLACK_SECONDS)


# --- late messages of an old attempt (field report B53)


def test_late_messages_of_an_old_attempt_change_nothing(run_manager):
    """A stalls, B attaches the same pool; what A still sends, on whatever call, is refused and B's blocks stay."""
    with run_manager("--metrics", "") as manager:
        stub = manager.stub
        old = attach(stub, "pool")
        old_requests = requests("pool", old)
        old_stream = stub.Steps(itertools.chain([next(old_requests)], waiting := Handed()))
        next(old_stream)
        new = attach(stub, "pool")
        assert new > old
        ours = requests("pool", new)
        stub.Step(next(ours))

        def state():
            return stub.CheckIntegrity(inspect_pb2.CheckIntegrityRequest(pool="pool")).state_digest

        before = state()
        release = steps_pb2.StepRequest(pool="pool", epoch=old, step=2, releases=[steps_pb2.Release(seq=1)])
        late = {
            "Step": lambda: stub.Step(release),
            "Steps": lambda: next(stub.Steps(iter([release]))),
            "the old stream": lambda: (waiting.put(release), next(old_stream)),
            "Detach": lambda: stub.Detach(attach_pb2.DetachRequest(pool="pool", epoch=old)),
        }
        for name, send in late.items():
            with pytest.raises(grpc.RpcError) as caught:
                send()
            refusal = Refusal.of(caught.value)
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_EPOCH"), name
            assert state() == before, name
        assert stub.Step(next(ours)).header.step == 2


class Handed:
    """Requests handed to a stream one by one."""

    def __init__(self):
        self._queue = queue.SimpleQueue()

    def put(self, request):
        self._queue.put(request)

    def __iter__(self):
        return iter(self._queue.get, None)
