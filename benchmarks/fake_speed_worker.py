"""Model workers that sleep where a real one computes: real servicer, scheduler, engine and pool, no model.

    python benchmarks/fake_speed_worker.py --manager 127.0.0.1:50052 --pools a,b,c [--prefill-rate 20000]

One worker per pool, each on a port of its own; each prints its ready line. A step takes a fixed time and the time of
its tokens at the prefill rate, so that a cached prefix saves what it saves on a device. Answers are token ids that
count up.
"""

import argparse
import asyncio
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import Tokenizer, models, pre_tokenizers

from model_worker.app import Readiness
from model_worker.engine.batch import Batch, Limits
from model_worker.engine.engine import Engine
from model_worker.engine.manager_client import GrpcManagerClient
from model_worker.engine.runner import ModelRunner
from model_worker.requests import ModelLimits, RequestReader
from model_worker.sampling.results import Sampled, StepOutput
from model_worker.servicer import Worker, WorkerServicer
from model_worker.streams import StreamTable
from octavo.kv.v1 import attach_pb2, common_pb2
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service import logs
from service.process import follow_parent
from service.serving import Server, catch_signals

SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
MODEL = "fake-speed"
VOCAB_SIZE = 1000
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Speed:
    """How long a step takes: ``step_seconds``, and its tokens at ``prefill_rate`` tokens a second."""

    step_seconds: float = 0.005
    prefill_rate: float = 20_000.0


class SleepingRunner:
    """Stands where ``ModelRunner`` does."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed

    def run(self, batch: Batch) -> StepOutput:
        """Sleep for as long as the batch would take."""
        tokens = sum(row.end - row.start for row in batch.rows)
        if tokens:
            time.sleep(self._speed.step_seconds + tokens / self._speed.prefill_rate)
        sampled = {row.sequence.seq: Sampled(row.end % VOCAB_SIZE) for row in batch.rows if row.samples}
        return StepOutput(sampled, {})


def tokenizer_files() -> dict[str, bytes]:
    """One word per id: the gateway turns ids into text as it does for a real model."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCAB_SIZE)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps({}).encode()}


class FakeSpeedWorker:
    """One worker with a server and an engine of its own."""

    def __init__(self, manager: str, pool: str, limits: Limits, speed: Speed) -> None:
        loop = asyncio.get_running_loop()
        self.failed = asyncio.Event()
        worker = Worker(secrets.token_hex(8), 10_000, StreamTable(loop), state="attaching")
        most = limits.num_blocks * limits.block_size
        worker.tokenizer = tokenizer_files()
        worker.reader = RequestReader(ModelLimits(VOCAB_SIZE, most, frozenset(), limits.max_sequences))
        worker.model = worker_pb2.GetModelResponse(
            header=worker_pb2.ResponseHeader(worker_id=worker.worker_id),
            model=MODEL,
            model_fingerprint=MODEL,
            vocab_size=VOCAB_SIZE,
            max_context=most,
            pool=pool,
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            max_batch_tokens=limits.max_batch_tokens,
            max_sequences=limits.max_sequences,
        )
        self._server = Server(
            [SERVICE],
            lambda target: worker_pb2_grpc.add_WorkerServiceServicer_to_server(WorkerServicer(worker), target),
        )
        self._worker = worker
        self._engine_parts: dict[str, Any] = {
            "spec": attach_pb2.PoolSpec(
                pool=pool,
                worker_id=worker.worker_id,
                num_blocks=limits.num_blocks,
                block_size=limits.block_size,
                block_bytes=1,
                model_fingerprint=MODEL,
                reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
            ),
            "limits": limits,
            "runner": cast(ModelRunner, SleepingRunner(speed)),
            "manager": GrpcManagerClient(manager),
            "emit": worker.streams.deliver,
        }

    async def start(self, listen: str = "127.0.0.1:0") -> None:
        """Serve, and attach the pool."""
        loop = asyncio.get_running_loop()
        readiness = Readiness(self._worker, self._server, await self._server.start(listen))
        self._worker.engine = Engine(
            on_ready=lambda ready, state: readiness.report(loop, ready, state),
            on_failure=lambda: loop.call_soon_threadsafe(self.failed.set),
            **self._engine_parts,
        )
        self._worker.engine.start()
        self._watching = asyncio.create_task(readiness.watch(self._worker.engine))

    async def stop(self) -> None:
        """Cut what runs and give the pool up."""
        self._watching.cancel()
        await self._server.stop(0)
        if self._worker.engine is not None:
            await asyncio.to_thread(self._worker.engine.stop)


async def serve(options: argparse.Namespace) -> None:
    caught = catch_signals()
    limits = Limits(options.num_blocks, BLOCK_SIZE, options.batch_tokens, options.sequences, options.batch_tokens)
    speed = Speed(options.step_seconds, options.prefill_rate)
    workers = [FakeSpeedWorker(options.manager, pool, limits, speed) for pool in options.pools.split(",")]
    for worker in workers:
        await worker.start()
    await caught
    for worker in workers:
        await worker.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manager", required=True)
    parser.add_argument("--pools", required=True, help="names, a,b,c")
    parser.add_argument("--num-blocks", type=int, default=25_000)
    parser.add_argument("--batch-tokens", type=int, default=2_048)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--prefill-rate", type=float, default=Speed.prefill_rate, help="tokens a second")
    parser.add_argument("--step-seconds", type=float, default=Speed.step_seconds)
    follow_parent()
    logs.set_up("fake_speed_worker", "warning")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
