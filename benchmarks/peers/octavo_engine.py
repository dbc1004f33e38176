"""Octavo's engine alone: worker and KV manager as objects of this process, no gateway, no text, no gRPC.

    python octavo_engine.py MODEL [FLAGS OF model_worker]

What the services around it cost is the difference to octavo_services.py.
"""

import asyncio
import os
import secrets
import sys
from importlib.metadata import version

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in model_worker
os.environ.setdefault("OCTAVO_KERNELS", "cpu")  # as in octavo_services

from line_protocol import Outcome, Run, Stopwatch, answer_runs
from workloads import Request

from cli.embedded_manager import InProcessManagerClient, LockedManager
from model_worker import app, settings
from model_worker.memory import plan_memory
from model_worker.servicer import Worker, WorkerServicer
from model_worker.streams import StreamTable
from octavo.kv.v1 import kv_manager_pb2
from octavo.worker.v1 import worker_pb2
from service.errors import ServiceError

RESET_PATIENCE_SECONDS = 10.0


class Attached:
    """Where the engine reports: set once it has its pool."""

    metrics: str | None = None

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.event = asyncio.Event()

    def report(self, loop: asyncio.AbstractEventLoop, ready: bool, state: str) -> None:
        self._worker.ready, self._worker.state = ready, state
        if ready:
            loop.call_soon_threadsafe(self.event.set)


def load() -> tuple[str, str, Run]:
    model, *flags = sys.argv[1:]
    if "--dtype" not in flags:
        flags += ["--dtype", "bfloat16"]
    chosen = settings.load(["--model", model, "--metrics", "", *flags])
    manager = LockedManager()
    loop = asyncio.new_event_loop()

    async def start() -> Worker:
        worker = Worker(secrets.token_hex(8), chosen.max_queued, StreamTable(loop))
        attached = Attached(worker)
        await app._start(chosen, plan_memory(chosen), InProcessManagerClient(manager), worker, attached)
        await attached.event.wait()
        return worker

    servicer = WorkerServicer(loop.run_until_complete(start()))

    async def stream(number: int, request: Request, watch: Stopwatch) -> None:
        wanted = worker_pb2.GenerateRequest(token_ids=request.prompt)
        wanted.sampling.temperature = 0
        wanted.stop.max_tokens = request.output
        wanted.stop.ignore_eos = True
        async for answer in servicer.Generate(wanted, None):
            watch.took(number, len(answer.token_ids))

    async def forget_prefixes() -> None:
        """The last releases reach the manager a step after the last token reached us."""
        deadline = loop.time() + RESET_PATIENCE_SECONDS
        while True:
            try:
                manager.reset_prefix_cache(kv_manager_pb2.ResetPrefixCacheRequest(pool=chosen.pool))
                return
            except ServiceError:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.01)

    async def run_all(requests: list[Request]) -> Outcome:
        await forget_prefixes()
        watch = Stopwatch(len(requests))
        await asyncio.gather(*(stream(number, request, watch) for number, request in enumerate(requests)))
        return watch.outcome()

    def run(requests: list[Request], latencies: bool) -> Outcome:
        return loop.run_until_complete(run_all(requests))

    return f"octavo {version('octavo')}", f"engine alone, {' '.join(flags)}", run


if __name__ == "__main__":
    answer_runs(load)
