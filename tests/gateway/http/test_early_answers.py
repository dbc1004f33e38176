"""Answers that come before the body is read: every client hears them, and none can keep the server reading for ever."""

import asyncio
import hashlib
import http.client
import json
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import openai
import pytest
from open_gate import open_gate
from prometheus_client import CollectorRegistry

from gateway.http import lingering
from gateway.http.server import HttpServer
from gateway.http.surface import Surface
from gateway.metrics import Metrics
from gateway.migration import MigrationPolicy, Migrations
from gateway.routing import Router
from gateway.settings import GatewaySettings
from gateway.tenancy.directory import Directory
from gateway.tenancy.gate import Gate, QueueBounds
from gateway.tenancy.metrics import TenantMetrics

pytestmark = pytest.mark.unit

COMPLETIONS = "/v1/completions"
# Far more than sockets hold on both ends, so that whoever sends it whole has to be read.
LARGE = 24 << 20
BODY = json.dumps({"prompt": "x" * LARGE}).encode()
KEY = "a key of sixteen and more"

Start = Callable[..., Awaitable[int]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a server that takes bodies of 1000 bytes; gives its port."""
    servers: list[HttpServer] = []

    async def begin(gate: Gate | None = None, *, draining: bool = False) -> int:
        metrics = Metrics()
        router = Router([])
        migrations = Migrations(router, MigrationPolicy(), metrics.registry)
        surface = Surface(router, GatewaySettings(http_max_body_bytes=1000), metrics, migrations, gate or open_gate())
        surface.draining = draining
        servers.append(HttpServer(surface))
        address = await servers[-1].start("127.0.0.1:0")
        return int(address.rpartition(":")[2])

    yield begin
    await asyncio.gather(*(server.stop(0) for server in servers))


def by_http_client(port: int, path: str = COMPLETIONS, **headers: str) -> int:
    """Sends all of the body before it looks at the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", path, BODY, {"content-type": "application/json", **headers})
    answer = connection.getresponse()
    assert json.loads(answer.read())["error"]["message"]
    connection.close()
    return answer.status


def chunked_by_http_client(port: int) -> int:
    parts = (BODY[at : at + 65536] for at in range(0, len(BODY), 65536))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", COMPLETIONS, parts, {"content-type": "application/json"}, encode_chunked=True)
    return connection.getresponse().status


def by_openai(port: int) -> int:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0, timeout=30) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            client.completions.create(model="m", prompt="x" * LARGE)
        assert caught.value.code == "request_too_large"
        return caught.value.status_code


@pytest.mark.parametrize("client", [by_http_client, chunked_by_http_client, by_openai])
async def test_clients_hear_that_their_body_is_too_large(start: Start, client: Callable[[int], int]) -> None:
    port = await start()
    assert await asyncio.to_thread(client, port) == 413


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
@pytest.mark.parametrize("expect", ["expect: 100-continue", "expect:"])
async def test_curl_hears_it_whether_it_waits_to_send_or_not(start: Start, expect: str, tmp_path: Path) -> None:
    port, file = await start(), tmp_path / "body"
    file.write_bytes(BODY)
    command = ["-sS", "--max-time", "30", "-H", expect, "-H", "content-type: application/json", "--data-binary"]
    url = f"http://127.0.0.1:{port}{COMPLETIONS}"
    process = await asyncio.create_subprocess_exec(
        "curl", *command, f"@{file}", url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complaints = await process.communicate()
    assert (process.returncode, complaints) == (0, b"")
    assert json.loads(said)["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (COMPLETIONS, {"content-type": "text/plain"}, 415),
        (COMPLETIONS, {"connection": "close"}, 413),
        ("/v1/nowhere", {"connection": "close"}, 404),
        ("/livez", {"connection": "close"}, 405),
    ],
)
async def test_every_answer_that_closes_the_connection_is_heard(
    start: Start, path: str, headers: dict[str, str], status: int
) -> None:
    port = await start()
    assert await asyncio.to_thread(by_http_client, port, path, **headers) == status


async def test_so_are_a_drain_and_a_wrong_key(start: Start, tmp_path: Path) -> None:
    assert await asyncio.to_thread(by_http_client, await start(draining=True), connection="close") == 503
    file = tmp_path / "tenants.toml"
    file.write_text(f'[tenants.a]\nkeys = ["{hashlib.sha256(KEY.encode()).hexdigest()}"]\n')
    metrics = TenantMetrics(CollectorRegistry())
    gate = Gate(Directory(file), lambda model: lambda: None, QueueBounds(30.0, 1024), metrics)
    assert await asyncio.to_thread(by_http_client, await start(gate), authorization="Bearer nobody's") == 401


async def test_a_connection_that_is_kept_serves_the_next_request(start: Start) -> None:
    port = await start()

    def twice() -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/nowhere", b"x" * LARGE)
        first = connection.getresponse()
        first.read()
        connection.request("GET", "/livez")
        return [first.status, connection.getresponse().status]

    assert await asyncio.to_thread(twice) == [404, 200]


def all_that_comes(port: int, body: bytes, declared: int) -> bytes:
    """Send a part of a body; what comes until the server closes."""
    lines = (f"POST {COMPLETIONS} HTTP/1.1", "host: t", "content-type: application/json", f"content-length: {declared}")
    head = "".join(f"{line}\r\n" for line in (*lines, ""))
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(head.encode() + body)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


async def test_a_client_that_does_not_send_its_body_is_answered_at_once_and_left_in_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "DRAIN_SECONDS", 0.1)
    answer = await asyncio.to_thread(all_that_comes, await start(), b"{", 5000)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"}")


async def test_a_body_without_an_end_is_read_to_the_bound(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "DRAIN_BYTES", 1 << 20)
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(by_http_client, await start())
