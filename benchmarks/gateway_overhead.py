"""What the gateway costs: a worker without a model offers tokens at a fixed pace, clients say when they arrive.

    python benchmarks/gateway_overhead.py [--tokenizer DIR] [--streams 32] [--seconds 10] [--json FILE] [--skip PART]

Three processes on loopback: `paced_worker.py`, a real gateway, and this one, which reads all streams. All three share
the machine, so the knee is the machine's; the processor time per token is the gateway's own, user and system.

    steady   32 streams, a token each per 8 ms, in lockstep as an engine's steps: gRPC, SSE, and the worker alone
    knee     shorter ticks until the tokens do not all come in time
    first    time to the first token, in turns through the gateway and without it
    idle     1,000 streams that wait for a first token: resident memory of the gateway

Ends with status 1 when a gate is missed.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
# Not first: kv_manager.py beside this file is a benchmark, not the package.
sys.path.append(sys.path.pop(0))

from token_streams import TICKS_PER_SECOND, Open, Seen, of_worker, over_grpc, over_sse  # noqa: E402

WORD = " the"
MAX_TOKENS_IN_MESSAGE = 4
SHARE_IN_SMALL_MESSAGES, ADDED_P99_MS, FIRST_TOKEN_MS, IDLE_MEGABYTES = 0.90, 20.0, 5.0, 300.0
CPU_US = {"grpc": 150.0, "sse": 250.0}
FIRST_TOKENS, IDLE_STREAMS = 300, 1_000
KNEE_MS = (8.0, 6.0, 5.0, 4.0, 3.2, 2.5)
# Tokens came in time when the last one came within this much of the offered time.
IN_TIME = 0.98


@dataclass(frozen=True, slots=True)
class Row:
    """One load on one surface. Times in ms but the processor's, in us; rates in tokens per second."""

    surface: str
    streams: int
    tick_ms: float
    offered: float
    delivered: float
    missing: int
    small: float
    p50: float
    p99: float
    gateway_us: float
    gateway_core: float

    @property
    def in_time(self) -> bool:
        return self.missing == 0 and self.delivered >= IN_TIME * self.offered


class Bench:
    """The processes and the clients of one run.

    Attributes:
        clients: by surface: grpc, sse, worker.
        gateway: the gateway's process.
    """

    def __init__(self, stamps: np.ndarray, clients: dict[str, Open], gateway: psutil.Process) -> None:
        self.clients = clients
        self.gateway = gateway
        self._stamps = stamps

    async def load(self, surface: str, streams: int, tick_seconds: float, seconds: float) -> Row:
        """Read ``streams`` streams for about ``seconds``."""
        tokens = min(round(seconds / tick_seconds), self._stamps.shape[1])
        before = self._processor_seconds()
        ticks = round(tick_seconds * TICKS_PER_SECOND)
        seen = await asyncio.gather(*(self.clients[surface](row, ticks, tokens) for row in range(streams)))
        spent = self._processor_seconds() - before
        sent = self._stamps[:streams, :tokens]
        added = sorted(
            (arrived - stamp) * 1e3
            for one, row in zip(seen, sent, strict=True)
            for arrived, stamp in zip(one.arrivals(), row, strict=False)
        )
        elapsed = max(one.times[-1] for one in seen) - float(sent[:, 0].min())
        count = sum(one.tokens for one in seen)
        return Row(
            surface=surface,
            streams=streams,
            tick_ms=tick_seconds * 1e3,
            offered=streams / tick_seconds,
            delivered=count / elapsed,
            missing=streams * tokens - count,
            small=_small(seen) / count,
            p50=added[len(added) // 2],
            p99=added[len(added) * 99 // 100],
            gateway_us=spent / count * 1e6,
            gateway_core=spent / elapsed,
        )

    async def first_tokens(self, surface: str) -> float:
        """Median ms that the gateway adds to the time to the first token: calls in turns, one at a time."""
        loop = asyncio.get_running_loop()
        seconds: dict[str, list[float]] = {surface: [], "worker": []}
        for _ in range(FIRST_TOKENS):
            for name, spent in seconds.items():
                began = loop.time()
                seen = await self.clients[name](0, 1, 1)
                spent.append(seen.times[0] - began)
        through, direct = (statistics.median(seconds[name]) for name in (surface, "worker"))
        return (through - direct) * 1e3

    async def idle(self, surface: str) -> float:
        """Resident MB of the gateway while streams wait for their first token."""
        waiting = [asyncio.create_task(self.clients[surface](0, 0, 1)) for _ in range(IDLE_STREAMS)]
        before = -1.0
        # Open when the gateway has stopped working on them, which its processor time tells.
        while (spent := self._processor_seconds()) - before > 0.02:
            before = spent
            await asyncio.sleep(1.0)
        assert not any(task.done() for task in waiting), "a stream that should wait has ended"
        resident = self.gateway.memory_info().rss / 1e6
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return resident

    def _processor_seconds(self) -> float:
        times = self.gateway.cpu_times()
        return float(times.user + times.system)


def _small(seen: list[Seen]) -> int:
    return sum(count for one in seen for count in one.counts if count <= MAX_TOKENS_IN_MESSAGE)


@contextmanager
def process(*command: str) -> Iterator[tuple[dict[str, Any], psutil.Process]]:
    """A service's ready line and process; it is stopped at the end."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=HERE.parent) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise SystemExit(f"{command} did not start")
            yield json.loads(line), psutil.Process(child.pid)
        finally:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(20)
            child.kill()


@asynccontextmanager
async def bench(tokenizer: Path, rows: int, columns: int) -> AsyncIterator[Bench]:
    """Worker, gateway and clients."""
    async with AsyncExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "stamps"
        stamps = np.memmap(file, np.float64, "w+", shape=(rows, columns))
        shape = ["--rows", str(rows), "--columns", str(columns)]
        worker_command = [str(HERE / "paced_worker.py"), "--tokenizer", str(tokenizer), "--stamps", str(file), *shape]
        worker, _ = stack.enter_context(process(*worker_command, "--word", WORD))
        listen = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-level", "warning"]
        gateway, gateway_process = stack.enter_context(
            process("-m", "gateway", *listen, "--workers", worker["grpc"], "--grace-seconds", "0")
        )
        clients = {
            "grpc": await stack.enter_async_context(over_grpc(gateway["grpc"])),
            "sse": await stack.enter_async_context(over_sse(gateway["http"], WORD)),
            "worker": await stack.enter_async_context(of_worker(worker["grpc"])),
        }
        yield Bench(stamps, clients, gateway_process)


def show(row: Row) -> None:
    cost = f"{row.gateway_us:6.0f} {row.gateway_core:6.2f}" if row.surface != "worker" else " " * 13
    print(
        f"{row.surface:7} {row.tick_ms:5.1f} {row.offered:8.0f} {row.delivered:9.0f} {row.missing:7d} {row.small:6.1%}"
        f" {row.p50:6.1f} {row.p99:6.1f} {cost}  {'' if row.in_time else 'late'}",
        flush=True,
    )


async def run(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, bool]]:
    """All parts that are wanted: the figures, and the gates by name."""
    figures: dict[str, Any] = {}
    gates: dict[str, bool] = {}
    columns = round(options.seconds / (min(KNEE_MS) / 1e3)) + 1
    async with bench(options.tokenizer, options.streams, columns) as at:
        print("surface  tick  offered delivered missing  small    p50    p99  us/tok   core")
        if "steady" not in options.skip:
            for surface in ("worker", "grpc", "sse"):
                await at.load(surface, options.streams, KNEE_MS[0] / 1e3, 1.0)  # warm
                row = await at.load(surface, options.streams, KNEE_MS[0] / 1e3, options.seconds)
                figures[f"steady {surface}"] = asdict(row)
                show(row)
                if surface in CPU_US:
                    gates[f"{surface}: all delivered"] = row.in_time
                    gates[f"{surface}: small messages"] = row.small >= SHARE_IN_SMALL_MESSAGES
                    gates[f"{surface}: added p99 < {ADDED_P99_MS:g} ms"] = row.p99 < ADDED_P99_MS
                    gates[f"{surface}: at most {CPU_US[surface]:g} us a token"] = row.gateway_us <= CPU_US[surface]
        if "knee" not in options.skip:
            for surface in ("worker", "grpc", "sse"):
                for tick in KNEE_MS[1:]:
                    row = await at.load(surface, options.streams, tick / 1e3, options.seconds / 2)
                    figures[f"knee {surface} {tick:g}"] = asdict(row)
                    show(row)
                    if not row.in_time:
                        break
        for surface in () if "first" in options.skip else ("grpc", "sse"):
            added = figures[f"first {surface}"] = await at.first_tokens(surface)
            gates[f"{surface}: first token < {FIRST_TOKEN_MS:g} ms"] = added < FIRST_TOKEN_MS
            print(f"{surface}: {added:.2f} ms added to the first token (p50)", flush=True)
        for surface in () if "idle" in options.skip else ("grpc", "sse"):
            resident = figures[f"idle {surface}"] = await at.idle(surface)
            gates[f"{surface}: {IDLE_STREAMS} idle < {IDLE_MEGABYTES:g} MB"] = resident < IDLE_MEGABYTES
            print(f"{surface}: {resident:.0f} MB with {IDLE_STREAMS} idle streams", flush=True)
    return figures, gates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=Path("models/smollm2"), help="folder with tokenizer.json")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--skip", nargs="*", default=[], choices=["steady", "knee", "first", "idle"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures, gates = asyncio.run(run(options))
    for name, passed in gates.items():
        print(f"{'pass' if passed else 'MISS'}  {name}")
    if options.json:
        options.json.write_text(json.dumps({"figures": figures, "gates": gates}, indent=2) + "\n")
    return 0 if all(gates.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
