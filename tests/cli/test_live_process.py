"""``octavo inspect --live`` beside a running KV manager, whose worker is the tour: over gRPC, and on a terminal."""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import pytest
from processes import ServiceProcess
from unclaimed_port import unclaimed_port

from cli.live.follower import Follower
from cli.live.mirror import SHARED
from cli.tour.pool import POOL, TourPool
from cli.tour.scenes import SCENES
from octavo.kv.v1 import attach_pb2, kv_manager_pb2_grpc
from service.channels import open_channel

pytestmark = pytest.mark.e2e

SECONDS = 120.0


class RemoteManager:
    """The calls of a ``Manager`` that the tour makes, over gRPC."""

    def __init__(self, stub: "kv_manager_pb2_grpc.KvManagerServiceStub") -> None:
        self._stub = stub
        self.step = stub.Step
        self.inspect_pool = stub.InspectPool
        self.inspect_sequence = stub.InspectSequence
        self.inspect_blocks = stub.InspectBlocks
        self.check_integrity = stub.CheckIntegrity

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        return self._stub.Attach(iter(parts))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ServiceProcess("kv_manager", "--listen", "127.0.0.1:0", "--metrics", "", "--lease-seconds", "300") as manager:
        yield manager.wait_ready().address


@pytest.fixture
def stub(address: str) -> Iterator[Any]:
    with open_channel(address) as channel:
        yield kv_manager_pb2_grpc.KvManagerServiceStub(channel)


def test_a_follower_keeps_up_with_a_worker_that_takes_steps(stub: Any, address: str) -> None:
    """After every scene the mirror becomes what the manager says; the pool is attached anew in the middle."""
    first, second = (TourPool(RemoteManager(stub)) for _ in range(2))  # type: ignore[arg-type]
    SCENES[0](first)
    with Follower(stub, POOL, address) as follower:
        for pool, scenes in ((first, SCENES[1:6]), (second, SCENES)):
            for play in scenes:
                play(pool)
                await_equal(pool, follower)
        assert len(follower.mirror.preemptions) == 2


def test_a_follower_finds_the_pool_of_a_manager_that_was_started_again() -> None:
    """The first manager dies and the second one, at the same address, has another pool of the same name."""
    flags = ("--metrics", "", "--lease-seconds", "300")
    address = f"127.0.0.1:{unclaimed_port()}"
    with ServiceProcess("kv_manager", "--listen", address, *flags) as manager:
        manager.wait_ready()
        with open_channel(address) as channel:
            stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
            pool = TourPool(RemoteManager(stub))  # type: ignore[arg-type]
            for play in SCENES[:4]:
                play(pool)
            with Follower(stub, POOL, address) as follower:
                await_equal(pool, follower)
                manager.stop()
                with follower.lock:
                    assert follower.lock.wait_for(lambda: follower.mirror.trouble != "", SECONDS)
                with ServiceProcess("kv_manager", "--listen", address, *flags) as another:
                    another.wait_ready()
                    with open_channel(address) as fresh:
                        # It shares its connection with the one that was refused, which is tried again a little later.
                        grpc.channel_ready_future(fresh).result(SECONDS)
                        pool = TourPool(RemoteManager(kv_manager_pb2_grpc.KvManagerServiceStub(fresh)))  # type: ignore[arg-type]
                        for play in SCENES[:6]:
                            play(pool)
                        await_equal(pool, follower)


def await_equal(pool: TourPool, follower: Follower) -> None:
    look, blocks = pool.look(), pool.blocks()
    stats = look.summary.stats
    tables = {summary.seq: pool.table(pool.letter(summary.seq)) for summary in look.sequences}

    def equal() -> bool:
        mirror, pages = follower.mirror, follower.mirror.pages
        if pages is None or mirror.summary.header.epoch != look.summary.header.epoch:
            return False
        counts = (pages.counts[0], pages.counts[1], pages.counts[4])
        return (
            counts == (stats.free_blocks, stats.cached_blocks, stats.fenced_blocks)
            and [code == SHARED for code in pages.codes] == [info.ref_count > 1 for info in blocks]
            and pages.tables == {seq: table for seq, table in tables.items() if table}
            and pages.sequences.keys() == tables.keys()
        )

    with follower.lock:
        assert follower.lock.wait_for(equal, SECONDS), (look, follower.mirror)


def test_the_command_draws_what_happens_until_q(stub: Any, address: str) -> None:
    pool = TourPool(RemoteManager(stub))  # type: ignore[arg-type]
    for play in SCENES[:5]:
        play(pool)
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "cli.main", "inspect", "--live", "--address", address]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        try:
            read_until(ours, b"2 running, 0 swapped")
            SCENES[5](pool)
            read_until(ours, b"3 running, 0 swapped")
            os.write(ours, b" ")
            read_until(ours, b"paused")
            os.write(ours, b"q")
            assert ended(process, ours) == 0
        finally:
            process.kill()
    assert termios.tcgetattr(theirs)[3] == before[3]  # keys are echoed again
    os.close(ours)
    os.close(theirs)


def ended(process: "subprocess.Popen[bytes]", descriptor: int) -> int:
    """The status of a process whose output is read to its end: a full terminal would hold it up."""
    deadline = time.monotonic() + SECONDS
    while process.poll() is None:
        assert time.monotonic() < deadline
        if select.select([descriptor], [], [], 0.1)[0]:
            os.read(descriptor, 65_536)
    return process.returncode


def read_until(descriptor: int, wanted: bytes) -> None:
    seen, deadline = b"", time.monotonic() + SECONDS
    while wanted not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, seen
        seen += os.read(descriptor, 65_536)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--pool", POOL],
            "octavo: --live draws on a terminal, and this is none: octavo inspect --blocks prints once\n",
        ),
        (["--json"], "octavo: --live shows the whole pool: it goes with neither --seq, --block, --blocks nor --json\n"),
        (
            ["--pool", "q"],
            "octavo: not found: pool 'q' is unknown or has expired: attach again (POOL_NOT_FOUND): "
            "`octavo check` names the pools there are\n",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    stub: Any, octavo: Any, address: str, arguments: list[str], line: str
) -> None:
    SCENES[0](TourPool(RemoteManager(stub)))  # type: ignore[arg-type]
    done = octavo(["inspect", "--live", *arguments, "--address", address])
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
