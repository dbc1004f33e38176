"""Does a step get dearer with the pool, with what is cached, or with the length of a sequence?

    python benchmarks/kv_growth.py [--blocks 10000000] [--steps 2000]

Small and large are measured in turn, so that a busy machine slows both; look at the ratios. A step here is 256 decoding
sequences at context 256, of which about 16 cross a block edge and 2 end and are replaced. Before the steps the pool's
index is filled to the last block by prompts of 512 tokens, one admitted and one released per step, and the longest of
those steps is kept by two clocks: the wall's, which counts what neighbours took, and the thread's own. Each pool size
has a process of its own; memory is the growth of its VmRSS, divided by the blocks.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil

# A script beside this one is named after the package it measures; it must not hide it.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(folder for folder in sys.path if Path(folder or ".").resolve() != HERE), str(HERE)]

from kv_load import BLOCK_SIZE, DecodeLoad  # noqa: E402
from kv_process import manager_process  # noqa: E402

from kv_manager.core.manager import Manager  # noqa: E402
from octavo.kv.v1 import attach_pb2, kv_manager_pb2_grpc, steps_pb2  # noqa: E402
from service.channels import CHANNEL_OPTIONS  # noqa: E402

SEQUENCES = 256
PROMPT_BLOCKS, BIG_PROMPT_BLOCKS = 32, 1_000
SMALL_BLOCKS = 10_000
CONTEXT, OUTPUT = 256, 128
"""256 sequences of at most 416 tokens take 6,656 blocks of the small pool."""
SHORT_TOKENS, LONG_TOKENS = 1_000, 1_000_000

Step = Callable[[steps_pb2.StepRequest], steps_pb2.StepResponse]


class Filler:
    """Prompts that leave nothing but their cache: each is released when the next one comes."""

    def __init__(self, load: DecodeLoad, blocks: int) -> None:
        self._load = load
        self._blocks = blocks
        self._seq = 0

    def request(self) -> steps_pb2.StepRequest:
        """One prompt of full blocks."""
        load, self._seq = self._load, self._seq + 1
        load.step += 1
        request = steps_pb2.StepRequest(
            pool=load.pool, epoch=load.epoch, step=load.step, completed_step=max(0, load.step - 2)
        )
        if self._seq > 1:
            request.releases.add(seq=self._seq - 1)
        tokens = self._blocks * BLOCK_SIZE
        request.admits.add(seq=self._seq, token_ids=os.urandom(4 * tokens), num_tokens=tokens, arrival=self._seq)
        load.first_free_seq = self._seq + 1
        return request


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def in_process(num_blocks: int, steps: int) -> dict[str, float]:
    """Fill a pool of this size in this process, then decode in it. Times in microseconds, memory in bytes per block."""
    manager = Manager(max_blocks=num_blocks)
    load = DecodeLoad("pool", SEQUENCES, context=CONTEXT, output=OUTPUT)
    gc.collect()
    empty = resident()
    began = time.perf_counter()
    load.epoch = manager.attach([attach_pb2.AttachRequest(pool=load.spec(num_blocks))]).header.epoch
    attach = time.perf_counter() - began
    gc.freeze()  # as the process does once it serves
    free = resident()
    filler = Filler(load, PROMPT_BLOCKS)
    fills: list[float] = []
    own: list[float] = []
    stats = None
    while stats is None or stats.free_blocks >= PROMPT_BLOCKS:
        request = filler.request()
        began, began_own = time.perf_counter(), time.thread_time()
        stats = manager.step(request).stats
        own.append(time.thread_time() - began_own)
        fills.append(time.perf_counter() - began)
    full = resident()
    cached = stats.cached_blocks
    times = decode(load, manager.step, steps)
    cuts = statistics.quantiles(times, n=100)
    return {
        "p50": cuts[49] * 1e6,
        "p99": cuts[98] * 1e6,
        "fill_p50": statistics.median(fills) * 1e6,
        "fill_worst_wall": max(fills) * 1e6,
        "fill_worst_own": max(own) * 1e6,
        "fill_steps": len(fills),
        "fill_over_5ms_own": sum(each > 0.005 for each in own),
        "attach": attach * 1e6,
        "free_bytes": (free - empty) / num_blocks,
        "cached_bytes": (full - empty) / cached,
        "cached": cached,
    }


def decode(load: DecodeLoad, step: Step, steps: int) -> list[float]:
    """Admit the sequences, then time ``steps`` steps of theirs, from building the request on."""
    step(load.begin())
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        answer = step(load.next_request())
        times.append(time.perf_counter() - began)
        assert not answer.waiting
    return times


def over_grpc(sizes: list[int], steps: int) -> list[float]:
    """p50 in microseconds for pools of these sizes in one manager process, their steps taken in turn."""
    flags = ("--max-pool-blocks", str(max(sizes)), "--lease-seconds", "600")
    with manager_process(*flags) as (address, _), grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        loads = []
        for size in sizes:
            load = DecodeLoad(f"blocks-{size}", SEQUENCES, context=CONTEXT, output=OUTPUT)
            load.epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=load.spec(size))])).header.epoch
            filler = Filler(load, BIG_PROMPT_BLOCKS)
            for _ in stub.Steps(filler.request() for _ in range(size // BIG_PROMPT_BLOCKS)):
                pass
            stub.Step(load.begin())
            loads.append(load)
        times: list[list[float]] = [[] for _ in sizes]
        for _ in range(steps):
            for load, found in zip(loads, times, strict=True):
                began = time.perf_counter()
                stub.Step(load.next_request())
                found.append(time.perf_counter() - began)
        return [statistics.median(found) * 1e6 for found in times]


def by_length(steps: int) -> list[tuple[int, float, float]]:
    """Growth by one block of a short and a long sequence, in turn: (tokens, p50, p99) in microseconds."""
    found = []
    for tokens in (SHORT_TOKENS, LONG_TOKENS):
        load = DecodeLoad(f"tokens-{tokens}", 1, context=tokens, lockstep=True)
        manager = Manager()
        spec = load.spec(load.blocks_needed(steps * BLOCK_SIZE))
        load.epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
        manager.step(load.begin())
        found.append((tokens, load, manager, []))
    for _ in range(steps * BLOCK_SIZE):
        for _, load, manager, times in found:
            request = load.next_request()
            began = time.perf_counter()
            manager.step(request)
            if request.HasField("advances"):
                times.append(time.perf_counter() - began)
    rows = []
    for tokens, _, _, times in found:
        cuts = statistics.quantiles(times, n=100)
        rows.append((tokens, cuts[49] * 1e6, cuts[98] * 1e6))
    return rows


def apart(num_blocks: int, steps: int) -> dict[str, float]:
    """``in_process`` in a fresh process."""
    command = [sys.executable, __file__, "--blocks", str(num_blocks), "--steps", str(steps), "--measure-one"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--no-grpc", action="store_true", help="leave out the part that fills a manager over gRPC")
    parser.add_argument("--measure-one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_one:
        print(json.dumps(in_process(options.blocks, options.steps)))
        return
    print(f"load {os.getloadavg()[0]:.1f}; {SEQUENCES} sequences, {options.steps} steps, all times in microseconds")
    sizes = [SMALL_BLOCKS, options.blocks]
    rows = [apart(size, options.steps) for size in (sizes[0], sizes[1], sizes[0])]
    print("     blocks  step p50   p99   fill p50   longest fill: wall, own clock   bytes per free, cached block")
    for size, row in zip((sizes[0], sizes[1], sizes[0]), rows, strict=True):
        steps = f"{row['p50']:8.0f} {row['p99']:5.0f}   {row['fill_p50']:8.0f}"
        longest = f"{row['fill_worst_wall']:18.0f}, {row['fill_worst_own']:9.0f}"
        print(f"{size:>11,}  {steps}   {longest}   {row['free_bytes']:14.1f}, {row['cached_bytes']:12.1f}")
    late, fills = rows[1]["fill_over_5ms_own"], rows[1]["fill_steps"]
    print(
        f"while {sizes[1]:,} blocks filled, {late:.0f} of {fills:,.0f} steps took over 5 ms by the thread's own clock"
    )
    small = min(rows[0]["p50"], rows[2]["p50"])
    print(f"in-process ratio {rows[1]['p50'] / small:.2f} (to the faster of the two small runs)")
    short, long = by_length(options.steps)
    print(
        f"growth by a block: {short[0]:,} tokens p50 {short[1]:.1f}, p99 {short[2]:.1f}; "
        f"{long[0]:,} tokens p50 {long[1]:.1f}, p99 {long[2]:.1f}; ratio {long[1] / short[1]:.2f}"
    )
    if not options.no_grpc:
        told = over_grpc(sizes, options.steps)
        print(f"over gRPC, unary, steps in turn: p50 {told[0]:.0f} and {told[1]:.0f}, ratio {told[1] / told[0]:.2f}")


if __name__ == "__main__":
    main()
