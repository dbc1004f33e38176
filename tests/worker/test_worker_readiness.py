"""What a worker says of itself while its engine waits for a manager."""

import asyncio
import contextlib

import pytest
from in_process_manager import InProcessManager

from model_worker import app
from model_worker.engine.batch import Limits
from model_worker.engine.engine import Engine
from model_worker.servicer import Worker
from model_worker.streams import StreamTable
from octavo.kv.v1 import attach_pb2
from service.serving import Server

ATTACHING = "attaching pool 'p' to the KV manager at m:1"


@pytest.mark.unit
async def test_a_worker_that_attaches_says_so_until_its_engine_says_something(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An attach may take longer than the time between two looks, and the engine waits for no answer meanwhile."""
    monkeypatch.setattr(app, "LOOK_SECONDS", 0.0)
    caplog.set_level("INFO")
    loop = asyncio.get_running_loop()
    worker = Worker("w", 1, StreamTable(loop), state="loading the model")
    readiness = app.Readiness(worker, Server([], lambda _: None), "127.0.0.1:1")
    engine = Engine(
        spec=attach_pb2.PoolSpec(pool="p"),
        limits=Limits(4, 4, max_batch_tokens=4, max_sequences=1, max_chunk=4),
        runner=None,  # type: ignore[arg-type]  # nothing runs
        manager=InProcessManager(),
        emit=worker.streams.deliver,
        on_ready=lambda ready, state: readiness.report(loop, ready, state),
        on_failure=lambda: None,
    )
    worker.state = ATTACHING
    watching = asyncio.create_task(readiness.watch(engine))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (worker.ready, worker.state) == (False, ATTACHING)
    assert "answers again" not in caplog.text
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
