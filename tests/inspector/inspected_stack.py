"""The three services with a tiny model, and requests whose end the test decides."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import ServiceProcess

from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from service.channels import open_channel

SECONDS = 180.0
POOL = "default"

Look = inspect_pb2.InspectPoolResponse


@dataclass(slots=True)
class Inspected:
    """A gateway that shows its manager.

    Attributes:
        http: host:port of the gateway.
        manager: host:port of the KV manager.
    """

    http: str
    manager: str
    _stub: "kv_manager_pb2_grpc.KvManagerServiceStub"

    @property
    def page(self) -> str:
        return f"http://{self.http}/inspect"

    def complete(self, **body: Any) -> Any:
        """A completion, waited for."""
        connection = http.client.HTTPConnection(self.http, timeout=SECONDS)
        try:
            connection.request("POST", "/v1/completions", _json(body), {"content-type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == 200, answer
            return answer
        finally:
            connection.close()

    @contextmanager
    def held(self, **body: Any) -> Iterator[int]:
        """A completion that goes on until the block ends; yields its sequence.

        Nothing can make a generation wait for its reader: tokens that nobody reads pile up in its worker. So ``body``
        has to ask for more than any machine generates meanwhile, and the end of the block checks that it did.
        """
        host, port = self.http.rsplit(":", 1)
        others = self.sequences()
        with socket.create_connection((host, int(port)), timeout=SECONDS) as caller:
            data = _json({**body, "stream": True})
            head = f"POST /v1/completions HTTP/1.1\r\nhost: {self.http}\r\ncontent-type: application/json\r\n"
            caller.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            assert caller.recv(12) == b"HTTP/1.1 200"
            look = self._look_until(lambda look: _sequences(look) - others)
            seq = min(_sequences(look) - others)
            yield seq
            assert seq in self.sequences(), f"{seq} ended while it was looked at: {body} is too little on this machine"

    def sequences(self) -> set[int]:
        """Those alive, as the manager says."""
        return _sequences(self._look())

    def idle(self) -> int:
        """Wait until nobody is in the pool; returns the manager's step."""
        return self._look_until(lambda look: not look.sequences).summary.header.step

    def _look(self) -> Look:
        request = inspect_pb2.InspectPoolRequest(pool=POOL)
        return self._stub.InspectPool(request, timeout=SECONDS, wait_for_ready=True)

    def _look_until(self, ready: Callable[[Look], object]) -> Look:
        deadline = time.monotonic() + SECONDS
        while not ready(look := self._look()):
            assert time.monotonic() < deadline, look
        return look


def _sequences(look: Look) -> set[int]:
    return {summary.seq for summary in look.sequences}


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


@contextmanager
def inspected_stack(
    model: Path,
    *,
    num_blocks: int,
    host_memory_mib: int = 0,
    manager: tuple[str, ...] = (),
    gateway: tuple[str, ...] = (),
) -> Iterator[Inspected]:
    """Manager, worker and gateway on loopback; more flags for the manager and the gateway."""
    listen = ("--listen=127.0.0.1:0", "--metrics=")
    with ExitStack() as stack:
        kv = stack.enter_context(ServiceProcess("kv_manager", *listen, *manager)).wait_ready()
        worker_flags = (f"--model={model}", f"--manager={kv.address}", "--threads=1", "--block-size=16")
        sizes = (f"--num-blocks={num_blocks}", f"--host-memory-mib={host_memory_mib}")
        worker = stack.enter_context(ServiceProcess("model_worker", *listen, *worker_flags, *sizes)).wait_ready()
        shown = ("--http-listen=127.0.0.1:0", f"--workers={worker.address}", f"--inspect-managers={kv.address}")
        front = stack.enter_context(ServiceProcess("gateway", *listen, *shown, *gateway)).wait_ready()
        channel = stack.enter_context(open_channel(kv.address))
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        yield Inspected(str(front.ready["http"]), kv.address, stub)
