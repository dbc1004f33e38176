"""The manager as a process."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import grpc
import psutil
import pytest

from octavo.kv.v1 import kv_manager_pb2_grpc

sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class ManagerProcess:
    """A manager process that has printed its ready line, and a client of it."""

    process: subprocess.Popen[str]
    grpc: str
    metrics: str | None
    channel: grpc.Channel
    started: float
    stderr: IO[str]

    @property
    def stub(self) -> kv_manager_pb2_grpc.KvManagerServiceStub:
        return kv_manager_pb2_grpc.KvManagerServiceStub(self.channel)

    def log(self) -> list[str]:
        """What it logged, once it has ended: it writes where we read. Warnings and worse, unless a flag says more."""
        self.stderr.seek(0)
        return self.stderr.read().splitlines()

    def resident_bytes(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss


@contextmanager
def _run(*arguments: str) -> Iterator[ManagerProcess]:
    command = [sys.executable, "-m", "kv_manager", "--listen", "127.0.0.1:0", "--log-level", "warning", *arguments]
    started = time.perf_counter()
    # A file, not a pipe that nobody reads: a full pipe would stop the manager in the middle of a log line.
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (log.seek(0), log.read())
            ready = json.loads(line)
            with grpc.insecure_channel(ready["grpc"]) as channel:
                yield ManagerProcess(process, ready["grpc"], ready["metrics"], channel, started, log)
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="session")
def run_manager() -> Callable[..., AbstractContextManager[ManagerProcess]]:
    """Starts a manager with the given flags; it is stopped when the block ends."""
    return _run
