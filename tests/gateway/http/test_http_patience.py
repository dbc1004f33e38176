"""The server in this process: connections that bring no request in time are closed, others are not."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from open_gate import open_gate

from gateway.http import patience
from gateway.http.server import HttpServer
from gateway.http.surface import Surface
from gateway.metrics import Metrics
from gateway.migration import MigrationPolicy, Migrations
from gateway.routing import Router
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.unit

LIVE = b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n"
# What a head may take here: a turn of a busy loop is shorter.
HEAD_SECONDS = 0.25


def surface_of(router: Router) -> Surface:
    metrics = Metrics()
    migrations = Migrations(router, MigrationPolicy(), metrics.registry)
    return Surface(router, GatewaySettings(), metrics, migrations, open_gate())


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(patience, "HEAD_SECONDS", HEAD_SECONDS)
    server = HttpServer(surface_of(Router([])))
    address = await server.start("127.0.0.1:0")
    yield int(address.rpartition(":")[2])
    await server.stop(0)


async def read_to_end(port: int, *sent: bytes) -> bytes:
    """What comes until the server closes the connection; ``sent`` goes out drop by drop, for as long as it is open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for data in sent:
            writer.write(data)
            await asyncio.sleep(0.3 * HEAD_SECONDS)
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:  # it was closed under a drop
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [(), (b"GET /livez",), tuple(b"GET /l"[at : at + 1] for at in range(6))])
async def test_a_head_that_does_not_come_closes_the_connection(port: int, sent: tuple[bytes, ...]) -> None:
    assert await read_to_end(port, *sent) == b""


async def test_the_second_head_of_a_connection_is_bounded_like_the_first(port: int) -> None:
    assert (await read_to_end(port, LIVE, b"GET ")).startswith(b"HTTP/1.1 200 OK")


async def test_silence_between_requests_is_no_late_head(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(LIVE)
        assert b"200" in await reader.readuntil(b"}")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 2 * HEAD_SECONDS)
    writer.close()
