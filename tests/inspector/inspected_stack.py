"""The three services with a tiny model, and requests whose end the test decides."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import ServiceProcess

SECONDS = 60.0


@dataclass(slots=True)
class Inspected:
    """A gateway that shows its manager.

    Attributes:
        http: host:port of the gateway.
        manager: host:port of the KV manager.
    """

    http: str
    manager: str

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
    def held(self, **body: Any) -> Iterator[None]:
        """A completion that nobody reads: its worker stops when the way is full, and it stays until the block ends."""
        host, port = self.http.rsplit(":", 1)
        with socket.socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.settimeout(SECONDS)
            caller.connect((host, int(port)))
            data = _json({**body, "stream": True})
            head = f"POST /v1/completions HTTP/1.1\r\nhost: {self.http}\r\ncontent-type: application/json\r\n"
            caller.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            assert caller.recv(12) == b"HTTP/1.1 200"
            yield


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
        yield Inspected(str(front.ready["http"]), kv.address)
