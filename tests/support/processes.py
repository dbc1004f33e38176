"""Real service processes for tests: started with port 0, found by their ready line, never waited for by sleeping."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


class ServiceProcess:
    """``python -m <module>`` with flags; a context manager that leaves no process behind.

    Args:
        folder: where the module is looked for first; an older build lies elsewhere.

    Attributes:
        ready: the ready line, once ``wait_ready`` returned.
        log: stderr so far, for messages when something fails.
    """

    def __init__(
        self, module: str, *flags: str, environ: Mapping[str, str] | None = None, folder: Path = REPOSITORY
    ) -> None:
        self.module = module
        self.ready: dict[str, Any] = {}
        self.log: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._logged = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **(environ or {})},
            start_new_session=True,
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_stdout, self._read_stderr)]
        for reader in self._readers:
            reader.start()

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._logged:
                self.log.append(line)
                self._logged.notify_all()

    def wait_ready(self, seconds: float = 120.0) -> "ServiceProcess":
        """Block until the ready line; fails with the log when the process ends or takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.module} not ready after {seconds} s:\n{self.tail()}") from None
            if line is None:
                raise AssertionError(f"{self.module} ended with {self.process.wait()}:\n{self.tail()}")
            if line.startswith("{") and json.loads(line).get("event") == "ready":
                self.ready = json.loads(line)
                return self

    def wait_log(self, text: str, seconds: float = 60.0, *, beside: str = "") -> list[str]:
        """The lines of stderr that hold a text, and another one beside it; at least one."""

        def found() -> list[str]:
            return [line for line in self.log if text in line and beside in line]

        with self._logged:
            assert self._logged.wait_for(found, seconds), f"{self.module} logged no {text!r}:\n{self.tail()}"
            return found()

    @property
    def address(self) -> str:
        """host:port of the gRPC server."""
        return str(self.ready["grpc"])

    def tail(self, lines: int = 30) -> str:
        return "".join(self.log[-lines:])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM, and SIGKILL for whoever does not listen. Returns the exit status, with the log read to its end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        for reader in self._readers:
            reader.join(seconds)  # children that live on hold the pipes open
        return status

    def __enter__(self) -> "ServiceProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Stack:
    """The three services of one test."""

    def __init__(self, manager: ServiceProcess, worker: ServiceProcess, gateway: ServiceProcess | None) -> None:
        self.manager = manager
        self.worker = worker
        self._gateway = gateway

    @property
    def gateway(self) -> ServiceProcess:
        assert self._gateway is not None, "this stack has no gateway"
        return self._gateway


@contextmanager
def running_stack(
    model: Path,
    *,
    worker_flags: Mapping[str, object] | None = None,
    manager_flags: Mapping[str, object] | None = None,
    gateway_flags: Mapping[str, object] | None = None,
    gateway: bool = True,
) -> Iterator[Stack]:
    """Manager, worker and, if wanted, gateway as processes on loopback, ready to be called."""
    common = {"listen": "127.0.0.1:0", "metrics": "", "log-level": "info"}
    with ExitStack() as stack:
        manager = stack.enter_context(
            ServiceProcess("kv_manager", *_flags({**common, **(manager_flags or {})}))
        ).wait_ready()
        worker = stack.enter_context(
            ServiceProcess(
                "model_worker",
                *_flags({**common, "model": model, "manager": manager.address, "threads": 2, **(worker_flags or {})}),
            )
        ).wait_ready()
        front = None
        if gateway:
            flags = _flags({**common, "http-listen": "", "workers": worker.address, **(gateway_flags or {})})
            front = stack.enter_context(ServiceProcess("gateway", *flags)).wait_ready()
        yield Stack(manager, worker, front)


def _flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]
