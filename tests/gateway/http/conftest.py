"""The gateway processes and toy workers of the gRPC tests, and raw HTTP over a socket."""

import importlib.util
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# Test folders are no packages (importmode=importlib), so the neighbour's fixtures are loaded by path.
_path = Path(__file__).resolve().parents[1] / "service" / "conftest.py"
_spec = importlib.util.spec_from_file_location("gateway_processes", _path)
assert _spec is not None
assert _spec.loader is not None
gateway_processes = importlib.util.module_from_spec(_spec)
sys.modules["gateway_processes"] = gateway_processes
_spec.loader.exec_module(gateway_processes)

start_worker = gateway_processes.start_worker
start_gateway = gateway_processes.start_gateway
toy_tokenizer = gateway_processes.toy_tokenizer
toy_files = gateway_processes.toy_files

PATIENCE_SECONDS = 30.0


class Answer(NamedTuple):
    """A response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error, which must have all fields of OpenAI's shape and no other."""
        error = self.json["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[Any]:
        """The JSON of each event; the stream must end with [DONE]."""
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events if not event.startswith(":")]


class Http:
    """Raw HTTP/1.1 to one address, so that a test may send what no client would."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE_SECONDS)

    def open(self, path: str, body: Any, **headers: str) -> socket.socket:
        """A connection on which a POST was sent; ``body`` is bytes, or what becomes JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"host": "test", "content-type": "application/json", "content-length": str(len(data)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items() if value)
        connection = self.connect()
        connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        return connection

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        with self.open(path, body, **headers) as connection:
            return read_answer(connection)

    def get(self, path: str, **headers: str) -> Answer:
        head = "".join(f"{name}: {value}\r\n" for name, value in {"host": "test", **headers}.items())
        return self.send(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())

    def send(self, data: bytes) -> Answer:
        """What comes back for bytes."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    """One response, by its own framing."""
    stream = connection.makefile("rb")
    status = int(stream.readline().split()[1])
    headers: dict[str, str] = {}
    while line := stream.readline().strip():
        name, _, value = line.decode("latin-1").partition(": ")
        headers[name.lower()] = value
    if headers.get("transfer-encoding") != "chunked":
        return Answer(status, headers, stream.read(int(headers["content-length"])))
    parts = []
    while size := int(stream.readline(), 16):
        parts.append(stream.read(size))
        stream.readline()
    stream.readline()
    return Answer(status, headers, b"".join(parts))


@pytest.fixture(scope="module")
def toy() -> Iterator[Any]:
    """A toy worker that emits a token per 2 ms, one for all tests of a file."""
    worker = gateway_processes.Child([str(_path.with_name("toy_worker.py")), "--token-seconds", "0.002"])
    worker.address = str(worker.wait_event("ready")["grpc"])
    yield worker
    worker.end()


@pytest.fixture(scope="module")
def gateway(toy: Any) -> Iterator[Any]:
    """A gateway in front of it, ready; ``http`` is its raw HTTP."""
    flags = ("--http-keep-alive-seconds", "0.1", "--http-max-body-bytes", "100000", "--max-prompt-bytes", "50000")
    gateway = gateway_processes.Gateway(["--workers", toy.address, *flags, "--http-cors-origins", "https://page.test"])
    gateway.http = Http(gateway.wait_event("ready")["http"])
    yield gateway
    gateway.end()


@pytest.fixture(scope="module")
def http(gateway: Any) -> Http:
    return gateway.http
