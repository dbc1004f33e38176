"""What a long answer costs the workers: steps while a watcher reads a snapshot, and while a long prompt is looked up.

    python benchmarks/kv_watch.py [--cached 10000 100000 1000000]

A pool is filled with that many cached blocks by prompts of 1,000. In-process: every slice of the snapshot, made and
serialised, by the thread's own clock, which a busy machine does not spoil. Over gRPC: an empty step every 2 ms, from
building the request to the answer decoded, while nobody watches and while a watcher reads one snapshot after another;
and while MatchPrefix looks up a prompt of as many blocks as the pool has cached, all of them held.
"""

import argparse
import gc
import multiprocessing
import os
import platform
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc

# A script beside this one is named after the package it measures; it must not hide it.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(folder for folder in sys.path if Path(folder or ".").resolve() != HERE), str(HERE)]

from kv_process import manager_process  # noqa: E402

from kv_manager.core.manager import Manager  # noqa: E402
from octavo.kv.v1 import attach_pb2, kv_manager_pb2_grpc, lookup_pb2, steps_pb2, watch_pb2  # noqa: E402
from service.channels import CHANNEL_OPTIONS  # noqa: E402

POOL = "pool"
BLOCK_SIZE = 1
PROMPT_BLOCKS = 1_000
BEAT_SECONDS = 0.002
STEPS = 1_000
SNAPSHOTS: dict[str, tuple[watch_pb2.EventKind, ...]] = {
    "a snapshot of the cache": (watch_pb2.EVENT_KIND_CACHE,),
    "a snapshot of everything": (
        watch_pb2.EVENT_KIND_CACHE,
        watch_pb2.EVENT_KIND_BLOCKS,
        watch_pb2.EVENT_KIND_TABLES,
        watch_pb2.EVENT_KIND_SEQUENCES,
    ),
}

Step = Callable[[steps_pb2.StepRequest], steps_pb2.StepResponse]


def spec(cached: int) -> attach_pb2.PoolSpec:
    """Room for the cached blocks and one prompt more."""
    blocks = cached + PROMPT_BLOCKS + 64
    return attach_pb2.PoolSpec(pool=POOL, worker_id="w", num_blocks=blocks, block_size=BLOCK_SIZE, reuse_regime=1)


def prompt(count: int) -> bytes:
    """The first ``count`` ids of one endless prompt, so that it can be looked up whole."""
    return struct.pack(f"<{count}I", *range(count))


class Filled:
    """A pool filled with the prefix of one long prompt, each prompt longer than the one before, so that all is held."""

    def __init__(self, step: Step, epoch: int, cached: int) -> None:
        self._step, self._epoch = step, epoch
        self.number = 0
        ids = prompt(cached)
        # One sequence grows by chunks: its digests are hashed once.
        self.send(admits=[steps_pb2.Admit(seq=1, token_ids=ids, num_tokens=PROMPT_BLOCKS)])
        for end in range(2 * PROMPT_BLOCKS, cached + 1, PROMPT_BLOCKS):
            self.send(advances=steps_pb2.Advances(seqs=[1], num_tokens=[end]))
        self.send(releases=[steps_pb2.Release(seq=1)])
        self.send()

    def send(self, **items: object) -> steps_pb2.StepResponse:
        """The next step."""
        self.number += 1
        return self._step(
            steps_pb2.StepRequest(
                pool=POOL,
                epoch=self._epoch,
                step=self.number,
                completed_step=self.number - 1,
                **items,  # type: ignore[arg-type]
            )
        )


def slices(cached: int, kinds: tuple[watch_pb2.EventKind, ...]) -> None:
    """In-process: how long each slice of a snapshot takes."""
    manager = Manager()
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec(cached))]).header.epoch
    gc.collect()
    gc.freeze()  # as the process does after an Attach
    pool = Filled(manager.step, epoch, cached)
    stats = pool.send().stats
    assert stats.cached_blocks == cached, stats
    watch = manager.watch(watch_pb2.WatchRequest(pool=POOL, kinds=kinds), lambda: None)
    work, taken, size = watch.poll(), [], 0
    while True:
        began = time.thread_time()
        try:
            piece = manager.run_slice(work)
        except StopIteration:
            break
        size += len(piece.SerializeToString()) if piece is not None else 0
        taken.append(1000 * (time.thread_time() - began))
    name = next(name for name, each in SNAPSHOTS.items() if each == kinds)
    print(
        f"| {cached:,} | {name} | {len(taken):,} | {sum(taken):.0f} | {statistics.median(taken):.2f} | "
        f"{statistics.quantiles(taken, n=100)[98] if len(taken) > 1 else taken[0]:.2f} | {max(taken):.2f} | "
        f"{size / 1e6:.1f} |"
    )


def beat(pool: Filled, until: Callable[[], bool]) -> list[float]:
    """Milliseconds per empty step, one every BEAT_SECONDS, at least STEPS of them and until the other side is done."""
    taken: list[float] = []
    while len(taken) < STEPS or not until():
        began = time.perf_counter()
        pool.send()
        ended = time.perf_counter()
        taken.append(1000 * (ended - began))
        time.sleep(max(0.0, began + BEAT_SECONDS - ended))
    return taken


def ask(address: str, name: str, cached: int, told: "multiprocessing.SimpleQueue[float]") -> None:
    """The other side, a process of its own: one long answer after another, each told with the seconds it took."""
    with grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        while True:
            began = time.perf_counter()
            if name == "MatchPrefix":
                found = stub.MatchPrefix(lookup_pb2.MatchPrefixRequest(token_ids=prompt(cached))).matches[0]
                assert found.cached_tokens == cached - 1
            else:
                call = stub.Watch(watch_pb2.WatchRequest(pool=POOL, kinds=SNAPSHOTS[name]))
                while not next(call).snapshot.last:
                    pass
                call.cancel()
            told.put(time.perf_counter() - began)


def steps(cached: int) -> None:
    """Over gRPC: how long steps take while long answers are made."""
    spawn = multiprocessing.get_context("spawn")
    with manager_process() as (address, _), grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        pool = Filled(stub.Step, stub.Attach(iter([attach_pb2.AttachRequest(pool=spec(cached))])).header.epoch, cached)
        for name in ("nothing", *SNAPSHOTS, "MatchPrefix"):
            told = spawn.SimpleQueue()
            side = spawn.Process(target=ask, args=(address, name, cached, told), daemon=True)
            if name != "nothing":
                side.start()
                told.get()
            taken = beat(pool, until=lambda told=told, name=name: name == "nothing" or not told.empty())  # type: ignore[misc]
            seconds = "-"
            if name != "nothing":
                seconds = f"{told.get():.2f}"
                side.terminate()
                side.join()
            percentiles = statistics.quantiles(taken, n=100)
            print(
                f"| {cached:,} | {name} | {seconds} | {percentiles[49]:.2f} | {percentiles[98]:.2f} | "
                f"{max(taken):.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cached", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    print(f"{platform.processor()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}\n")
    print("| cached blocks | what is read | slices | CPU ms in all | p50 ms | p99 ms | longest ms | MB |")
    print("|---|---|---|---|---|---|---|---|")
    for cached in arguments.cached:
        for kinds in SNAPSHOTS.values():
            slices(cached, kinds)
    print("\n| cached blocks | meanwhile | s each | step p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|---|")
    for cached in arguments.cached:
        steps(cached)


if __name__ == "__main__":
    main()
