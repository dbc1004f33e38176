"""Real gateway processes against a small real peer that speaks the worker's protocol."""

import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from unclaimed_port import unclaimed_port

from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from octavo.gateway.v1 import gateway_pb2_grpc
from service.channels import open_channel

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

# Test folders are no packages (importmode=importlib), so the shared builder is loaded by path, under its name.
_spec = importlib.util.spec_from_file_location("byte_tokenizer", HERE / "byte_tokenizer.py")
assert _spec is not None
assert _spec.loader is not None
byte_tokenizer = importlib.util.module_from_spec(_spec)
sys.modules["byte_tokenizer"] = byte_tokenizer
_spec.loader.exec_module(byte_tokenizer)

PATIENCE_SECONDS = 90.0


class Child:
    """A process whose JSON lines, on stdout and stderr, are events to wait for."""

    def __init__(self, arguments: list[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OCTAVO_")}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "protos")])
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=HERE,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen: list[dict[str, Any]] = []
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(pipe,), daemon=True)
            for pipe in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()
        self.address = ""

    def _read(self, pipe: Any) -> None:
        for line in pipe:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"line": line.rstrip()}
            self._events.put(event)

    def wait_for(self, wanted: Callable[[dict[str, Any]], object], seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The next event that is wanted; earlier ones go to ``seen``."""
        while True:
            try:
                event = self._events.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"no such event; last seen: {self.seen[-10:]}") from None
            self.seen.append(event)
            if wanted(event):
                return event

    def wait_event(self, name: str, **facts: object) -> dict[str, Any]:
        """The next event of a name, with the given facts."""
        return self.wait_for(
            lambda event: event.get("event") == name and all(event.get(key) == value for key, value in facts.items())
        )

    def all_events(self, name: str) -> list[dict[str, Any]]:
        """Every event of a name; only for a process that has ended."""
        self.process.wait(PATIENCE_SECONDS)
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)
        while not self._events.empty():
            self.seen.append(self._events.get_nowait())
        return [event for event in self.seen if event.get("event") == name]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


class Gateway(Child):
    """A gateway process and a client of it."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(["-m", "gateway", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", *arguments])
        said = self.wait_for(lambda event: "grpc" in event)
        self.address = str(said["grpc"])
        if said.get("event") == "ready":
            # It comes by another pipe than the log, and may overtake the line that tells the address: for later.
            self._events.put(said)
        self.channel = open_channel(self.address)
        self.stub = gateway_pb2_grpc.GatewayServiceStub(self.channel)

    def wait_health(self, *, serving: bool, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait, by grpc.health.v1 Watch, until the gateway is SERVING or not."""
        wanted = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        watch = health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest(), timeout=seconds)
        for response in watch:
            if response.status == wanted:
                watch.cancel()
                return

    def end(self) -> None:
        self.channel.close()
        super().end()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Child]]:
    """Starts toy workers: ``start_worker("--token-seconds", "0.01")``."""
    children: list[Child] = []

    def start(*arguments: str) -> Child:
        child = Child([str(HERE / "toy_worker.py"), *arguments])
        children.append(child)
        child.address = str(child.wait_event("ready")["grpc"])
        return child

    yield start
    for child in children:
        child.end()


@pytest.fixture
def start_manager() -> Iterator[Callable[..., Child]]:
    """Starts real KV managers."""
    children: list[Child] = []

    def start(*arguments: str) -> Child:
        child = Child(["-m", "kv_manager", "--listen", "127.0.0.1:0", "--metrics", "", *arguments])
        children.append(child)
        child.address = str(child.wait_event("ready")["grpc"])
        return child

    yield start
    for child in children:
        child.end()


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., Gateway]]:
    """Starts gateways that know their address; whether they are ready is the test's to wait for."""
    children: list[Gateway] = []

    def start(workers: str, *arguments: str) -> Gateway:
        children.append(Gateway(["--workers", workers, *arguments]))
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.fixture
def free_port() -> int:
    """A port nobody listens on."""
    return unclaimed_port()


@pytest.fixture(scope="session")
def toy_files() -> dict[str, bytes]:
    return dict(byte_tokenizer.tokenizer_files())


@pytest.fixture(scope="session")
def toy_tokenizer(toy_files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer(toy_files)


@pytest.fixture(scope="session")
def toy_template(toy_tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(toy_tokenizer.chat_template, toy_tokenizer.special_tokens)
