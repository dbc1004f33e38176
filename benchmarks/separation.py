"""What it costs that the KV manager is a process of its own: the engine against itself, in turns in one run.

    python benchmarks/separation.py [--model DIR] [--pairs 10] [--cut N] [--json FILE]

One process, one copy of the weights, five engines that run W2 and W3 of docs/performance.md:

    in-process    the manager is an object beside the engine
    remote        the manager is another process, over gRPC: the ratio is this over in-process
    delayed       as remote, behind a relay that holds every answer for 2 ms
    no overlap    as delayed, and each request is answered before the step before it runs: the control
    no overlap 0  as remote, without overlap

The two of the ratio run side by side and take turns, four steps each: what else the machine does then slows both
alike, which it does not when one runs for ten seconds and then the other. Each counts the time of its own turns. The
others run alone, W2 only, the controls in the first three rounds.

Exposed wait is the time the engine's thread stood waiting for an answer, over the time it spent in steps. Steps that
have nothing to ask are not asked for, in any of them. Gate: ratio at least 0.98 with the lower end of its interval
above 0.95 on both workloads, exposed wait under 1 % on W2 for remote and delayed, and the controls must show the delay:
at least 1 ms a request between them. Ends with status 1 otherwise.
"""

import argparse
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in model_worker

HERE = Path(__file__).resolve().parent
# Not first: kv_manager.py beside this file is a benchmark, not the package.
sys.path[0] = str(HERE / "peers")
sys.path.append(str(HERE))

import torch  # noqa: E402
from comparison import Ratio, summarize  # noqa: E402
from kv_process import manager_process  # noqa: E402
from workloads import Request, Workload, all_workloads  # noqa: E402

from cli.embedded_manager import InProcessManagerClient, LockedManager  # noqa: E402
from kernels import PoolShape, allocate_pool  # noqa: E402
from model_worker.engine.batch import Batch, Limits  # noqa: E402
from model_worker.engine.engine import Engine  # noqa: E402
from model_worker.engine.manager_client import GrpcManagerClient, ManagerClient  # noqa: E402
from model_worker.engine.progress import Progress  # noqa: E402
from model_worker.engine.runner import ModelRunner  # noqa: E402
from model_worker.engine.sequence import Sequence  # noqa: E402
from model_worker.model.config import ModelConfig  # noqa: E402
from model_worker.model.loader import DTYPES, LoadedModel, load_model, read_config  # noqa: E402
from model_worker.sampling.params import SamplingParams, StopConditions  # noqa: E402
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2  # noqa: E402

PAIRS = 10
DELAY_SECONDS = 0.002
BLOCK_SIZE = 16
EACH, LOWER_END, EXPOSED, CONTROL_SECONDS = 0.98, 0.95, 0.01, 0.001
COMPARED, CONTROLS, CONTROL_ROUNDS = ("in-process", "remote"), ("no overlap", "no overlap 0"), 3
STEPS_IN_TURN = 4


@contextmanager
def relay(target: str, seconds: float) -> Iterator[str]:
    """A process that passes connections on to ``target`` and holds what comes back for ``seconds``: its address."""
    command = [sys.executable, __file__, "--relay", target, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def serve_relay(target: str, seconds: float) -> None:
    host, _, port = target.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        near, _ = listener.accept()
        far = socket.create_connection((host, int(port)))
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=pass_on, args=(near, far, 0.0), daemon=True).start()
        threading.Thread(target=pass_on, args=(far, near, seconds), daemon=True).start()


def pass_on(source: socket.socket, sink: socket.socket, seconds: float) -> None:
    with suppress(OSError), sink:  # either end has gone
        while data := source.recv(1 << 16):
            time.sleep(seconds)
            sink.sendall(data)


class WithoutOverlap:
    """A way to the manager on which a request is answered before anything else happens."""

    def __init__(self, client: ManagerClient) -> None:
        self._client = client
        self._answer: steps_pb2.StepResponse | None = None
        self.waited_seconds = 0.0
        self.requests = 0

    def capabilities(self) -> frozenset[int]:
        return self._client.capabilities()

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        return self._client.attach(parts)

    def send(self, request: steps_pb2.StepRequest) -> None:
        began = time.monotonic()
        self._client.send(request)
        self._answer = self._client.receive()
        self.waited_seconds += time.monotonic() - began
        self.requests += 1

    def receive(self) -> steps_pb2.StepResponse:
        assert self._answer is not None
        return self._answer

    def detach(self, request: attach_pb2.DetachRequest) -> None:
        self._client.detach(request)

    def close(self) -> None:
        self._client.close()


class Turns:
    """Lets one of several engines step at a time, and counts for each how long it had."""

    def __init__(self, names: Iterable[str]) -> None:
        self._waiting = list(names)  # the first one has the turn
        self._changed = threading.Condition()
        self._began = time.monotonic()
        self._steps = 0
        self.seconds = dict.fromkeys(self._waiting, 0.0)

    def begin_step(self, name: str) -> None:
        """Wait for the turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_step(name))

    def end_step(self, name: str) -> None:
        """Hand the turn on when it is over, and wait until it comes back."""
        with self._changed:
            self._steps += 1
            if self._steps == STEPS_IN_TURN and name in self._waiting:
                self._pass_on([*self._waiting[1:], name])
                self._changed.wait_for(lambda: self._may_step(name))

    def leave(self) -> None:
        """Whoever has the turn has ended."""
        with self._changed:
            self._pass_on(self._waiting[1:])

    def _may_step(self, name: str) -> bool:
        """Whoever has left clears up as it likes."""
        return name not in self._waiting or self._waiting[0] == name

    def _pass_on(self, order: list[str]) -> None:
        now = time.monotonic()
        self.seconds[self._waiting[0]] += now - self._began
        self._waiting, self._began, self._steps = order, now, 0
        self._changed.notify_all()


@dataclass
class TurnTakingEngine(Engine):
    """Runs a step when it is its turn. A turn ends with a step, when the manager has long answered."""

    turns: Turns | None = None

    def _execute(self, batch: Batch) -> None:
        if (turns := self.turns) is None:
            super()._execute(batch)
            return
        turns.begin_step(self.spec.pool)
        super()._execute(batch)
        turns.end_step(self.spec.pool)


@dataclass
class Run:
    """One workload on one engine."""

    tokens_per_second: float
    steps: int
    step_seconds: float
    waited_seconds: float

    @property
    def exposed(self) -> float:
        return self.waited_seconds / self.step_seconds


@dataclass
class Variant:
    """An engine, and what it has run so far by workload."""

    name: str
    client: ManagerClient
    engine: TurnTakingEngine
    ended: "queue.SimpleQueue[bool]" = field(default_factory=queue.SimpleQueue)
    left: int = 0
    arrivals: int = 0
    runs: dict[str, list[Run]] = field(default_factory=dict)

    @classmethod
    def start(cls, name: str, client: ManagerClient, loaded: LoadedModel, shape: PoolShape) -> "Variant":
        ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        engine = TurnTakingEngine(
            spec=attach_pb2.PoolSpec(
                pool=name,
                worker_id=name,
                num_blocks=shape.num_blocks,
                block_size=BLOCK_SIZE,
                block_bytes=shape.block_bytes,
                model_fingerprint=loaded.fingerprint,
                reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
            ),
            limits=Limits(shape.num_blocks, BLOCK_SIZE, max_batch_tokens=512, max_sequences=32, max_chunk=512),
            runner=ModelRunner(loaded.model, allocate_pool(shape, torch.device("cpu")), BLOCK_SIZE),
            manager=client,
            emit=lambda _: None,
            on_ready=lambda is_ready, _: ready.put(is_ready),
            on_failure=lambda: ready.put(False),
        )
        variant = cls(name, client, engine)
        engine.emit = variant._emit
        engine.start()
        if not ready.get(timeout=60):
            raise SystemExit(f"the engine {name} did not start")
        return variant

    def submit(self, workload: Workload) -> None:
        """All requests, under a salt of their own, so that nothing is found in the cache."""
        self.left = len(workload.requests)
        for request in workload.requests:
            self.engine.submit(self._sequence(request, salt=f"{workload.name} {self.arrivals}"))

    def _emit(self, steps: list[Progress]) -> None:
        self.left -= sum(one.ended is not None for one in steps)
        if not self.left and any(one.ended is not None for one in steps):
            if self.engine.turns is not None:
                self.engine.turns.leave()
            self.ended.put(True)

    def counters(self) -> tuple[float, float, float]:
        """Steps, seconds in steps, and seconds of them spent waiting for the manager."""
        statistics = self.engine.statistics
        return statistics.steps, statistics.step_seconds, self._waited()

    def _waited(self) -> float:
        if isinstance(self.client, WithoutOverlap):
            return self.client.waited_seconds
        return self.engine.statistics.manager_wait_seconds

    def _sequence(self, request: Request, salt: str) -> Sequence:
        self.arrivals += 1
        return Sequence(
            request_id=str(self.arrivals),
            tokens=list(request.prompt),
            prompt_length=len(request.prompt),
            limit=len(request.prompt) + request.output,
            sampling=SamplingParams(temperature=0.0),
            stop=StopConditions(),
            arrival=self.arrivals,
            salt=salt,
        )

    def exposed(self, workload: str) -> float:
        """Exposed wait over all runs, as a share of the time in steps."""
        runs = self.runs[workload]
        return sum(run.waited_seconds for run in runs) / sum(run.step_seconds for run in runs)


def run_alone(variant: Variant, workload: Workload) -> None:
    """Run a workload on one engine."""
    with recorded(variant, workload) as seconds:
        began = time.monotonic()
        variant.submit(workload)
        variant.ended.get(timeout=3600)
        seconds.append(time.monotonic() - began)


def run_in_turns(variants: list[Variant], workload: Workload) -> None:
    """Run a workload on several engines, of which one steps at a time."""
    with ExitStack() as stack:
        seconds = [stack.enter_context(recorded(each, workload)) for each in variants]
        turns = Turns(each.name for each in variants)
        for each in variants:
            each.engine.turns = turns
            each.submit(workload)
        for each, spent in zip(variants, seconds, strict=True):
            each.ended.get(timeout=3600)
            each.engine.turns = None
            spent.append(turns.seconds[each.name])


@contextmanager
def recorded(variant: Variant, workload: Workload) -> Iterator[list[float]]:
    """Adds a run to the variant's; the caller says how many seconds it took."""
    before, seconds = variant.counters(), list[float]()
    yield seconds
    steps, step_seconds, waited = (new - old for new, old in zip(variant.counters(), before, strict=True))
    run = Run(workload.tokens / seconds[0], int(steps), step_seconds, waited)
    variant.runs.setdefault(workload.name, []).append(run)


def pool_shape(config: ModelConfig, dtype: torch.dtype, workloads: Iterable[Workload]) -> PoolShape:
    """Room for everything that a workload holds at once, so that nobody is preempted."""
    blocks = max(sum(-(-(len(one.prompt) + one.output) // BLOCK_SIZE) for one in each.requests) for each in workloads)
    return PoolShape(blocks + 64, config.num_layers, config.num_kv_heads, BLOCK_SIZE, config.head_dim, dtype)


def waited_per_request(variant: Variant) -> float:
    """Seconds, of a variant without overlap."""
    assert isinstance(variant.client, WithoutOverlap)
    return variant.client.waited_seconds / variant.client.requests


def verdicts(variants: dict[str, Variant], ratios: dict[str, Ratio], pairs: int) -> list[tuple[bool, str]]:
    """The gate, a line each."""
    lines = []
    for workload, found in ratios.items():
        met = found.pairs >= pairs and found.median >= EACH and found.low > LOWER_END
        lines.append((met, f"{workload}: remote over in-process {found.median:.3f} ({found.low:.3f}-{found.high:.3f})"))
    for name in ("remote", "delayed"):
        exposed = variants[name].exposed("W2")
        lines.append((exposed < EXPOSED, f"W2: {name}: exposed wait {exposed:.2%} of step time"))
    shown = waited_per_request(variants["no overlap"]) - waited_per_request(variants["no overlap 0"])
    lines.append((shown >= CONTROL_SECONDS, f"without overlap the delay shows: {1000 * shown:.2f} ms a request"))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=HERE.parent / "models" / "smollm2")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--cut", type=int, metavar="N", help="prompts and outputs of at most N tokens: a trial run")
    parser.add_argument("--json", type=Path, help="write every run here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    everything = all_workloads()
    workloads = [everything[name].cut(options.cut) if options.cut else everything[name] for name in ("W2", "W3")]
    dtype = DTYPES[options.dtype]
    loaded = load_model(options.model, dtype, torch.device("cpu"))
    shape = pool_shape(read_config(options.model), dtype, workloads)
    with ExitStack() as stack:
        address, _ = stack.enter_context(manager_process())
        slow = stack.enter_context(relay(address, DELAY_SECONDS))
        clients: dict[str, ManagerClient] = {
            "in-process": InProcessManagerClient(LockedManager()),
            "remote": GrpcManagerClient(address),
            "delayed": GrpcManagerClient(slow),
            "no overlap": WithoutOverlap(GrpcManagerClient(slow)),
            "no overlap 0": WithoutOverlap(GrpcManagerClient(address)),
        }
        variants = {name: Variant.start(name, client, loaded, shape) for name, client in clients.items()}
        for one in variants.values():
            stack.callback(one.engine.stop)
            run_alone(one, workloads[0].cut(16))  # warm
            one.runs.clear()
        pair = [variants[name] for name in COMPARED]
        for number in range(options.pairs):
            for workload in workloads:
                # The short one twice, so that its interval is no wider.
                for times in range(2 if workload is workloads[0] else 1):
                    run_in_turns(pair if (number + times) % 2 else pair[::-1], workload)
            for name, one in variants.items():
                if name not in COMPARED and (name not in CONTROLS or number < CONTROL_ROUNDS):
                    run_alone(one, workloads[0])
    ratios = {
        each.name: summarize(
            [
                remote.tokens_per_second / beside.tokens_per_second
                for remote, beside in zip(
                    variants["remote"].runs[each.name], variants["in-process"].runs[each.name], strict=True
                )
            ]
        )
        for each in workloads
    }
    print(f"{'':14}{'':4}{'tokens/s':>10}{'ms/step':>10}{'exposed':>10}")
    for name, one in variants.items():
        for workload, runs in one.runs.items():
            speed = sorted(run.tokens_per_second for run in runs)[len(runs) // 2]
            step = 1000 * sum(run.step_seconds for run in runs) / sum(run.steps for run in runs)
            print(f"{name:14}{workload:4}{speed:10.1f}{step:10.2f}{one.exposed(workload):10.2%}")
    found = verdicts(variants, ratios, PAIRS)
    for met, line in found:
        print(f"{'met   ' if met else 'FAILED'}  {line}")
    if options.json:
        rows = {
            name: {of: [vars(run) for run in runs] for of, runs in one.runs.items()} for name, one in variants.items()
        }
        options.json.write_text(json.dumps(rows, indent=1))
    if not options.cut and not all(met for met, _ in found):
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--relay"]:
        serve_relay(sys.argv[2], float(sys.argv[3]))
    else:
        main()
