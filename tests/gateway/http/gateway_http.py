"""Raw HTTP/1.1 over a socket, so that a test may send what no client would."""

import json
import socket
from typing import Any, NamedTuple

PATIENCE_SECONDS = 90.0


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
        connection = self.connect()
        connection.sendall(post_of(path, data, **headers))
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


def post_of(path: str, data: bytes, **headers: str) -> bytes:
    """A POST as it goes over the wire; ``content_type=""`` leaves that header out."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = {"host": "test", "content-type": "application/json", "content-length": str(len(data)), **given}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data


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
