"""What the KV manager costs: a decoding step by number of sequences and transport, admissions, pool size, memory.

    python benchmarks/kv_manager.py [--steps 10000] [--sequences 16,64,256,1024,4096] [--part decode,admit,pool,memory]

A decoding step is timed from building the request to the answer decoded. Context 512, block size 16; start lengths are
uniform modulo the block size, so one sequence in 16 crosses a block edge in a step: it commits its full block and asks
for another (rule 8). `lockstep` lets all of them cross in the same step. `empty` is a round trip of the same bytes that
nobody looks at; what a manager costs over the wire is the difference.
"""

import argparse
import asyncio
import gc
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

# This file is named after what it measures; its own folder must not hide the package.
sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).resolve().parent]

from kv_manager.core.manager import Manager  # noqa: E402
from kv_manager.metrics import step_times  # noqa: E402
from kv_manager.servicer import KvManagerServicer  # noqa: E402
from octavo.kv.v1 import attach_pb2, common_pb2, kv_manager_pb2_grpc, steps_pb2  # noqa: E402
from service.channels import CHANNEL_OPTIONS  # noqa: E402
from service.errors import ErrorInterceptor  # noqa: E402
from service.serving import SERVER_OPTIONS  # noqa: E402

BLOCK_SIZE = 16
CONTEXT = 512
ECHO = "/octavo.benchmark.Echo/Steps"
FILL_BLOCKS = 64
IDS = os.urandom(1 << 20)


def token_ids(count: int) -> bytes:
    """Ids that no two calls share, cut from random bytes."""
    start = random.randrange(len(IDS) - 4 * count) if 4 * count < len(IDS) else 0
    return IDS[start : start + 4 * count] if start else os.urandom(4 * count)


def spec(num_blocks: int) -> attach_pb2.PoolSpec:
    return attach_pb2.PoolSpec(
        pool="bench",
        worker_id="bench",
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
    )


# --- transports


@dataclass
class Client:
    """A manager somewhere: ``attach`` and ``step``."""

    attach: Callable[[list[attach_pb2.AttachRequest]], attach_pb2.AttachResponse]
    step: Callable[[steps_pb2.StepRequest], steps_pb2.StepResponse]


def in_process() -> Client:
    manager = Manager()
    return Client(manager.attach, manager.step)


def exchange(call: Callable[..., Any]) -> Callable[[Any], Any]:
    """Request, answer, request, answer over one stream."""
    pending: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answers = call(iter(pending.get, None))

    def send(request: Any) -> Any:
        pending.put(request)
        return next(answers)

    return send


def remote(channel: grpc.Channel) -> Client:
    stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
    return Client(lambda parts: stub.Attach(iter(parts)), exchange(stub.Steps))


def empty(channel: grpc.Channel, answer: bytes) -> Client:
    """Answers every request with the same bytes, unread."""
    call = channel.stream_stream(
        ECHO,
        request_serializer=lambda request: request if isinstance(request, bytes) else request.SerializeToString(),
        response_deserializer=steps_pb2.StepResponse.FromString,
    )
    send = exchange(call)
    send(answer)
    return Client(lambda parts: attach_pb2.AttachResponse(), send)


async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """The first message is the answer to all."""
    answer = b""
    async for request in requests:
        answer = answer or request
        yield answer


async def serve(address: str) -> None:
    """The manager's servicer, as its process serves it, and the echo beside it."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=SERVER_OPTIONS)
    kv_manager_pb2_grpc.add_KvManagerServiceServicer_to_server(KvManagerServicer(Manager(), step_times()), server)
    handler = grpc.stream_stream_rpc_method_handler(echo, bytes, bytes)
    service, method = ECHO.strip("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port(address)
    await server.start()
    print(json.dumps({"address": address if address.startswith("unix:") else f"127.0.0.1:{port}"}), flush=True)
    await server.wait_for_termination()


@contextmanager
def process(address: str) -> Iterator[grpc.Channel]:
    """The servicer in a process of its own."""
    command = [sys.executable, __file__, "--serve", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            with grpc.insecure_channel(ready["address"], CHANNEL_OPTIONS) as channel:
                yield channel
        finally:
            server.terminate()


# --- decoding


@dataclass
class Result:
    """Times in microseconds."""

    times: list[float]
    crossings: int

    def at(self, fraction: float) -> float:
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]

    @property
    def mean(self) -> float:
        return sum(self.times) / len(self.times)


class Decoding:
    """``count`` sequences that decode one token a step. Sequences with one residue cross block edges together."""

    def __init__(self, client: Client, count: int, steps: int, lockstep: bool) -> None:
        self.client, self.steps = client, steps
        rng = random.Random(0)
        num_blocks = count * (-(-(CONTEXT + BLOCK_SIZE + steps) // BLOCK_SIZE) + 2)
        self.epoch = client.attach([attach_pb2.AttachRequest(pool=spec(num_blocks))]).header.epoch
        self.step_number = 0
        self.lengths: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.by_residue: list[list[int]] = [[] for _ in range(BLOCK_SIZE)]
        for seq in range(1, count + 1):
            residue = 0 if lockstep else rng.randrange(BLOCK_SIZE)
            self.lengths[seq] = self.committed[seq] = CONTEXT + residue
            self.by_residue[residue].append(seq)

    def admit(self) -> None:
        for seq, length in self.lengths.items():
            request = self._request()
            request.admits.add(seq=seq, token_ids=token_ids(length), num_tokens=length)
            assert len(self.client.step(request).grants) == 1

    def _request(self) -> steps_pb2.StepRequest:
        self.step_number += 1
        return steps_pb2.StepRequest(
            pool="bench", epoch=self.epoch, step=self.step_number, completed_step=self.step_number - 1
        )

    def run(self, keep: Callable[[steps_pb2.StepResponse], None] | None = None) -> Result:
        times: list[float] = []
        crossings = 0
        for done in range(self.steps):
            crossing = self.by_residue[-done % BLOCK_SIZE]
            ids = token_ids(BLOCK_SIZE * len(crossing)) if crossing else b""
            started = time.perf_counter()
            request = self._request()
            if crossing:
                self._fill(request, crossing, done, ids)
            response = self.client.step(request)
            blocks = [grant.blocks[:] for grant in response.grants[:]]
            times.append((time.perf_counter() - started) * 1e6)
            crossings += len(blocks)
            if keep is not None:
                keep(response)
        return Result(times, crossings)

    def _fill(self, request: steps_pb2.StepRequest, crossing: list[int], done: int, ids: bytes) -> None:
        lengths, committed = self.lengths, self.committed
        starts, counts, asked = [], [], []
        first = done < BLOCK_SIZE
        for seq in crossing:
            length = lengths[seq] + done
            asked.append(length + 1)
            if length > committed[seq]:
                starts.append(committed[seq])
                counts.append(length - committed[seq])
                committed[seq] = length
        request.advances.seqs.extend(crossing)
        request.advances.num_tokens.extend(asked)
        if starts:
            request.commits.seqs.extend(crossing)
            request.commits.starts.extend(starts)
            request.commits.counts.extend(counts)
            request.commits.token_ids = ids[: 4 * sum(counts)]
        assert first or starts


def decode(counts: list[int], steps: int) -> None:
    print(f"\nA decoding step, microseconds; context {CONTEXT}, block size {BLOCK_SIZE}, {steps} steps")
    print(
        f"{'sequences':>12} {'transport':>12} {'mean':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8} {'crossings':>10}"
    )
    with tempfile.TemporaryDirectory() as folder, process(f"unix:{folder}/s") as unix, process("127.0.0.1:0") as tcp:
        rows = [(count, False) for count in counts] + [(256, True)]
        for count, lockstep in rows:
            limit = min(steps, 4_000_000 // count)
            answers: list[steps_pb2.StepResponse] = []
            clients = [
                ("in-process", in_process),
                ("unix", lambda: remote(unix)),
                ("tcp", lambda: remote(tcp)),
                ("empty unix", lambda answers=answers: empty(unix, _typical(answers))),
                ("empty tcp", lambda answers=answers: empty(tcp, _typical(answers))),
            ]
            for name, connect in clients:
                load = Decoding(connect(), count, limit, lockstep)
                if name.startswith("empty"):
                    load.client.attach([])
                else:
                    load.admit()
                result = load.run(answers.append if name == "in-process" else None)
                crossings = str(result.crossings) if not name.startswith("empty") else ""
                label = f"{count} lockstep" if lockstep else str(count)
                figures = [result.mean, *(result.at(part) for part in (0.5, 0.9, 0.99, 1.0))]
                print(f"{label:>12} {name:>12} " + " ".join(f"{x:8.0f}" for x in figures) + f" {crossings:>10}")


def _typical(answers: list[steps_pb2.StepResponse]) -> bytes:
    """An answer of median size."""
    return sorted((answer.SerializeToString() for answer in answers), key=len)[len(answers) // 2]


# --- admissions


def admit() -> None:
    print("\nAdmissions, microseconds")
    with process("127.0.0.1:0") as channel:
        for name, connect in (("in-process", in_process), ("tcp", lambda: remote(channel))):
            for length, repeats in ((512, 200), (100_000, 5)):
                client = connect()
                blocks = (repeats + 1) * (length // BLOCK_SIZE + 2)
                epoch = client.attach([attach_pb2.AttachRequest(pool=spec(blocks))]).header.epoch
                cold, warm = [], []
                step = 0
                for seq in range(1, repeats + 1):
                    ids = token_ids(length)
                    for times, number in ((cold, 2 * seq - 1), (warm, 2 * seq)):
                        step += 1
                        started = time.perf_counter()
                        request = steps_pb2.StepRequest(pool="bench", epoch=epoch, step=step, completed_step=step - 1)
                        request.admits.add(seq=number, token_ids=ids, num_tokens=length)
                        answer = client.step(request)
                        _ = list(answer.grants[0].blocks)
                        times.append((time.perf_counter() - started) * 1e6)
                    step += 1
                    request = steps_pb2.StepRequest(pool="bench", epoch=epoch, step=step, completed_step=step - 1)
                    request.releases.add(seq=2 * seq - 1)
                    request.releases.add(seq=2 * seq)
                    client.step(request)
                for state, times in (("cold", cold), ("warm", warm)):
                    result = Result(times, 0)
                    print(
                        f"{name:>12} {length:>8} tokens {state}: p50 {result.at(0.5):8.0f}, p90 {result.at(0.9):8.0f}"
                    )


# --- pool size and memory


def pool(steps: int) -> None:
    print("\nA step of 256 sequences by pool size, in-process, every block cached and evicted; microseconds")
    for num_blocks in (10_000, 1_000_000, 10_000_000):
        client = in_process()
        started = time.perf_counter()
        epoch = client.attach([attach_pb2.AttachRequest(pool=spec(num_blocks))]).header.epoch
        attached = (time.perf_counter() - started) * 1e3
        gc.collect()
        gc.freeze()  # as the process does after every Attach
        step, seq = 0, 0
        worst = 0.0
        filled = 0
        while filled < num_blocks - 2_000:
            step, seq = step + 1, seq + 1
            length = FILL_BLOCKS * BLOCK_SIZE
            request = steps_pb2.StepRequest(pool="bench", epoch=epoch, step=step, completed_step=step - 1)
            request.admits.add(seq=seq, token_ids=os.urandom(4 * length), num_tokens=length)
            if seq > 1:
                request.releases.add(seq=seq - 1)
            used = time.thread_time()  # what the step itself takes; a busy machine's scheduler is not ours
            client.step(request)
            worst = max(worst, (time.thread_time() - used) * 1e3)
            filled += length // BLOCK_SIZE
        times = []
        lengths = {}
        for number in range(seq + 1, seq + 257):
            step += 1
            lengths[number] = 16 + number % BLOCK_SIZE
            request = steps_pb2.StepRequest(pool="bench", epoch=epoch, step=step, completed_step=step - 1)
            request.admits.add(seq=number, token_ids=os.urandom(4 * lengths[number]), num_tokens=lengths[number])
            if number == seq + 1:
                request.releases.add(seq=seq)
            client.step(request)
        committed = dict(lengths)
        # 256 sequences over 500 steps take 8,500 blocks: the smallest pool holds them without a preemption.
        for _ in range(min(steps, 500)):
            step += 1
            request = steps_pb2.StepRequest(pool="bench", epoch=epoch, step=step, completed_step=step - 1)
            for number in lengths:
                lengths[number] += 1
                if (lengths[number] - 1) % BLOCK_SIZE == 0:
                    count = lengths[number] - 1 - committed[number]
                    if count:
                        request.commits.seqs.append(number)
                        request.commits.starts.append(committed[number])
                        request.commits.counts.append(count)
                        request.commits.token_ids += os.urandom(4 * count)
                        committed[number] += count
                    request.advances.seqs.append(number)
                    request.advances.num_tokens.append(lengths[number])
            started = time.perf_counter()
            client.step(request)
            times.append((time.perf_counter() - started) * 1e6)
        result = Result(times, 0)
        print(
            f"{num_blocks:>12,} blocks: p50 {result.at(0.5):6.0f}, mean {result.mean:6.0f}, max {result.at(1):6.0f}; "
            f"attach {attached:.0f} ms; worst admission of {FILL_BLOCKS} blocks while filling {worst:.1f} ms CPU"
        )


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory() -> None:
    print("\nMemory, by resident size of a process of its own")
    num_blocks = 1_000_000
    before = resident()
    client = in_process()
    epoch = client.attach([attach_pb2.AttachRequest(pool=spec(num_blocks))]).header.epoch
    free = resident() - before
    for step in range(1, 252):
        request = steps_pb2.StepRequest(pool="bench", epoch=epoch, step=step, completed_step=step - 1)
        request.admits.add(seq=step, token_ids=os.urandom(4 * 63_999), num_tokens=63_999)
        if step > 1:
            request.releases.add(seq=step - 1)
        client.step(request)
    cached = resident() - before

    each = f"{free / num_blocks:.0f} bytes per free block, {cached / num_blocks:.0f} per cached block"
    print(f"{each} (pool of {num_blocks:,})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--sequences", default="16,64,256,1024,4096")
    parser.add_argument("--part", default="decode,admit,pool,memory")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve))
        return
    parts = given.part.split(",")
    if "memory" in parts:
        memory()
    if "admit" in parts:
        admit()
    if "pool" in parts:
        pool(given.steps)
    if "decode" in parts:
        decode([int(count) for count in given.sequences.split(",")], given.steps)


if __name__ == "__main__":
    main()
