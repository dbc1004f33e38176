"""Where a decoding step of the KV manager goes: its phases in-process, and what the wire adds.

    python benchmarks/kv_step_profile.py [--sequences 256 1024] [--steps 2000]

In-process the phases are timed by wrapping the functions that serve them, which adds about 4 us. Over gRPC the
manager's own histogram says how long the same steps took: longer than in-process, since its core sleeps in between.
"""

import argparse
import queue
import socket
import statistics
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import grpc

sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parent))

from kv_load import DecodeLoad  # noqa: E402
from kv_process import manager_process  # noqa: E402

from kv_manager.core import growth, pool  # noqa: E402
from kv_manager.core.manager import Manager  # noqa: E402
from octavo.kv.v1 import attach_pb2, kv_manager_pb2_grpc  # noqa: E402
from service.channels import CHANNEL_OPTIONS  # noqa: E402

PHASES: list[tuple[str, Any, str]] = [
    ("validate the request", pool, "validate_step"),
    ("fences, confirmed digests, header", pool.Pool, "_begin"),
    ("commit: ids, SHA-256, index", pool.Pool, "_commit"),
    ("advance: blocks and grants", growth, "serve"),
    ("count blocks by state", pool.Pool, "fill_stats"),
    ("the whole step", Manager, "step"),
]


@contextmanager
def timed(times: dict[str, list[float]]) -> Iterator[None]:
    """Every phase's calls, in seconds."""

    def timing(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                times[label].append(time.perf_counter() - began)

        return call

    patches = [mock.patch.object(owner, name, timing(label, getattr(owner, name))) for label, owner, name in PHASES]
    for patch in patches:
        patch.start()
    yield
    for patch in patches:
        patch.stop()


def in_process(sequences: int, steps: int) -> None:
    load, manager = DecodeLoad("profile", sequences), Manager()
    spec = load.spec(load.blocks_needed(steps))
    load.epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    manager.step(load.begin())
    times: dict[str, list[float]] = defaultdict(list)
    with timed(times):
        for _ in range(steps):
            manager.step(load.next_request())
    print(f"\n{sequences} sequences, {load.crossings / steps:.1f} cross an edge in a step; in-process, microseconds")
    whole = 0.0
    for label, _, _ in PHASES:
        mean = statistics.mean(times[label]) * 1e6 * len(times[label]) / steps
        whole = mean
        print(f"  {label:36} mean {mean:7.1f}   p50 {statistics.median(times[label]) * 1e6:7.1f}")
    print(f"  {'of it per sequence that crosses':36} mean {whole * steps / max(load.crossings, 1):7.2f}")


def over_grpc(sequences: int, steps: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        manager_process("--metrics", metrics) as (address, _),
        grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel,
    ):
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        load = DecodeLoad("profile", sequences)
        spec = load.spec(load.blocks_needed(steps))
        load.epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        answers = stub.Steps(iter(requests.get, None))
        requests.put(load.begin())
        next(answers)
        served, seconds = step_seconds(metrics)
        times = []
        for _ in range(steps):
            request = load.next_request()
            began = time.perf_counter()
            requests.put(request)
            next(answers)
            times.append(time.perf_counter() - began)
        served_after, seconds_after = step_seconds(metrics)
        requests.put(None)
    own = (seconds_after - seconds) / (served_after - served) * 1e6
    whole = statistics.mean(times) * 1e6
    print(f"  over gRPC: {whole:.0f} mean, of which the manager's step {own:.0f}, the rest {whole - own:.0f}")


def step_seconds(metrics: str) -> tuple[float, float]:
    """Steps served, and the seconds they took, by the manager's histogram."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as page:
        lines = [
            line.split() for line in page.read().decode().splitlines() if line.startswith("octavo_kv_step_seconds_")
        ]
    found = {line[0]: float(line[1]) for line in lines}
    return found["octavo_kv_step_seconds_count"], found["octavo_kv_step_seconds_sum"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[256, 1_024])
    parser.add_argument("--steps", type=int, default=2_000)
    options = parser.parse_args()
    for sequences in options.sequences:
        in_process(sequences, options.steps)
        over_grpc(sequences, options.steps)


if __name__ == "__main__":
    main()
