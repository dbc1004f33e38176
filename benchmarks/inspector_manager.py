"""What somebody who looks costs a manager: its CPU time per step of the worker, beside that of one nobody looks at.

Sequences decode in each of two managers, which take their steps in turns at a steady pace; one is looked at through
``octavo inspect --web``. Counted is the CPU time of all threads of their processes. The share is of the time between
two steps of the worker, whether it makes a request in each or asks for room ahead and makes none in many.

And in-process, without gRPC: what a step's answer waits for longer when somebody watches, and what reading takes, by
the thread's own clock.
"""

import contextlib
import gc
import http.client
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import grpc
import psutil
from kv_load import DecodeLoad
from kv_load_ahead import AheadLoad
from kv_process import REPOSITORY, manager_process

from gateway.inspector.feed import BATCH_MS
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, kv_manager_pb2_grpc, steps_pb2, watch_pb2
from service.channels import CHANNEL_OPTIONS
from service.watched import PAGE_KINDS

POOL = "pool"
CONTEXT, OUTPUT = 512, 256
"""Tokens of a prompt, and of its answer: short ones, so that sequences come and go often."""


@contextmanager
def inspector(manager: str) -> Iterator[str]:
    """`octavo inspect --web` before a manager: the page's address."""
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "inspect",
        "--web",
        "--web-listen",
        "127.0.0.1:0",
        "--address",
        manager,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the page did not start")
            yield line.split()[0]
        finally:
            process.terminate()
            process.wait(20)


class Viewer:
    """Reads the stream as fast as it comes, in a thread."""

    def __init__(self, page: str, manager: str) -> None:
        address = urllib.parse.urlsplit(page).netloc
        self._connection = http.client.HTTPConnection(address, timeout=60)
        query = urllib.parse.urlencode({"manager": manager, "pool": POOL})
        self._connection.request("GET", f"/inspect/watch?{query}")
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        self.read_bytes = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(http.client.HTTPException, OSError):  # closed in the middle of a part
            while part := self._response.read1(1 << 16):
                self.read_bytes += len(part)

    def close(self) -> None:
        sock = self._connection.sock
        assert sock is not None
        sock.shutdown(2)
        self._reader.join(10)
        self._connection.close()


def cpu_seconds(process: psutil.Process) -> float:
    """What a process's threads have run, to the nanosecond; ``cpu_times`` counts in hundredths of a second."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Decoding:
    """A manager whose pool is used by sequences that decode; asked over a stream, as workers do."""

    def __init__(self, process: psutil.Process, channel: grpc.Channel, load: DecodeLoad | AheadLoad) -> None:
        self.requests = 0
        self._process = process
        self._load = load
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        spec = self._load.spec(self._load.blocks_needed(0))
        self._load.epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
        self._asked: SimpleQueue[steps_pb2.StepRequest | None] = SimpleQueue()
        self._answers = stub.Steps(iter(self._asked.get, None))
        self._ask(self._load.begin())
        self._began = 0.0

    def step(self) -> None:
        """A step of the worker, with a request where it needs one."""
        if (request := self._load.next_request()) is not None:
            self.requests += 1
            self._ask(request)

    def end(self) -> None:
        self._asked.put(None)

    def _ask(self, request: steps_pb2.StepRequest) -> None:
        self._asked.put(request)
        self._load.heard(next(self._answers))

    def begin(self) -> None:
        self._began = cpu_seconds(self._process)

    def spent(self) -> float:
        """CPU seconds since ``begin``."""
        return cpu_seconds(self._process) - self._began


def pace(managers: "list[Decoding]", steps: int, step_seconds: float) -> None:
    """Steps of all in turns, at a steady pace."""
    for _ in range(steps):
        began = time.perf_counter()
        for manager in managers:
            manager.step()
        time.sleep(max(0.0, began + step_seconds - time.perf_counter()))


def measure_manager(sequences: int, steps: int, step_seconds: float, rounds: int, *, ahead: bool) -> None:
    """Two managers with the same load take their steps in turns; one of them is looked at."""
    load = AheadLoad if ahead else DecodeLoad
    with (
        manager_process("--lease-seconds", "600") as (address, process),
        manager_process("--lease-seconds", "600") as (watched_address, watched_process),
        grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel,
        grpc.insecure_channel(watched_address, CHANNEL_OPTIONS) as watched_channel,
        inspector(watched_address) as page,
    ):
        alone, watched = (
            Decoding(process, channel, load(POOL, sequences, context=CONTEXT, output=OUTPUT)),
            Decoding(watched_process, watched_channel, load(POOL, sequences, context=CONTEXT, output=OUTPUT)),
        )
        viewer = Viewer(page, watched_address)
        pace([alone, watched], 100, step_seconds)  # the snapshot is told once
        costs: list[tuple[float, float]] = []
        before, requests = viewer.read_bytes, watched.requests
        for _ in range(rounds):
            alone.begin()
            watched.begin()
            pace([alone, watched], steps, step_seconds)
            costs.append((alone.spent() / steps, watched.spent() / steps))
        read, requests = viewer.read_bytes - before, watched.requests - requests
        viewer.close()
        for manager in (alone, watched):
            manager.end()
    added = [behind - front for front, behind in costs]
    print(
        "\n| sequences | step ms | requests a step | steps | manager's CPU us a step, alone | with a viewer | "
        "added, median | least and most of the rounds | of a step | stream kB/s |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    print(
        f"| {sequences} | {1000 * step_seconds:.0f} | {requests / (rounds * steps):.2f} | {rounds} x {steps} | "
        f"{1e6 * statistics.median(front for front, _ in costs):.0f} | "
        f"{1e6 * statistics.median(behind for _, behind in costs):.0f} | {1e6 * statistics.median(added):.0f} | "
        f"{1e6 * min(added):.0f} to {1e6 * max(added):.0f} | {statistics.median(added) / step_seconds:.2%} | "
        f"{read / (rounds * steps * step_seconds) / 1000:.0f} |"
    )


class Inside:
    """A manager in this process, and the sequences that decode with it."""

    def __init__(self, load: DecodeLoad | AheadLoad) -> None:
        self.load, self.manager = load, Manager()
        spec = load.spec(load.blocks_needed(0))
        load.epoch = self.manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
        load.heard(self.manager.step(load.begin()))

    def step(self) -> float:
        """Microseconds that a step of the worker takes the manager."""
        if (request := self.load.next_request()) is None:
            return 0.0
        began = time.thread_time_ns()
        response = self.manager.step(request)
        took = time.thread_time_ns() - began
        self.load.heard(response)
        return took / 1000


def measure_inside(sequences: int, steps: int, step_seconds: float, rounds: int, *, ahead: bool) -> None:
    """Two managers in this process take steps in turns, one of them watched; its events are read as often as a feed
    reads them."""
    load = AheadLoad if ahead else DecodeLoad
    alone, watched = (Inside(load(POOL, sequences, context=CONTEXT, output=OUTPUT)) for _ in range(2))
    request = watch_pb2.WatchRequest(pool=POOL, kinds=PAGE_KINDS, batch_ms=BATCH_MS)
    watch = watched.manager.watch(request, lambda: None)

    def read() -> float:
        began = time.thread_time_ns()
        for response in watch.poll():
            if response is not None:
                response.SerializeToString()
        return (time.thread_time_ns() - began) / 1000

    read()  # the snapshot
    gc.collect()
    gc.freeze()  # as the process does after an Attach
    every = max(1, round(BATCH_MS / 1000 / step_seconds))
    costs = []
    for _ in range(rounds):
        front = behind = reading = 0.0
        for count in range(1, steps + 1):
            front += alone.step()
            behind += watched.step()
            if count % every == 0:
                reading += read()
        costs.append((front / steps, (behind - front) / steps, reading / steps))
    front, longer, reading = (statistics.median(column) for column in zip(*costs, strict=True))
    print(
        "\n| in-process: sequences | steps a batch | steps | us a step, alone | longer with a watcher | reading | "
        "added to what it takes alone |\n|---|---|---|---|---|---|---|"
    )
    print(
        f"| {sequences} | {every} | {rounds} x {steps} | {front:.0f} | {longer:.0f} | {reading:.0f} | "
        f"{statistics.median((longer + reading) / front for front, longer, reading in costs):.2f} |"
    )
