"""The loop of the gateway: a burst of gRPC's events wakes it once, and everything else is as in asyncio."""

import asyncio
import logging
import resource
import selectors
import socket
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.channels import open_aio_channel
from service.event_loop import BurstLoop
from service.serving import Server

pytestmark = pytest.mark.unit

AT_ONCE = 200


class Selector(selectors.DefaultSelector):
    """Counts the turns of a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        return super().select(timeout)


async def many_calls() -> int:
    """So many calls at once, client and server in one loop; returns how many were answered."""
    server = Server([], lambda target: None)
    address = await server.start("127.0.0.1:0")
    await server.set_ready(True)
    async with open_aio_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = await asyncio.gather(*(stub.Check(health_pb2.HealthCheckRequest()) for _ in range(AT_ONCE)))
    await server.stop(0)
    return sum(answer.status == health_pb2.HealthCheckResponse.SERVING for answer in answers)


def test_a_burst_of_calls_takes_fewer_turns() -> None:
    """Also whether the installed gRPC is one that the loop knows."""
    turns = {}
    for kind in (asyncio.SelectorEventLoop, BurstLoop):
        selector = Selector()
        with asyncio.Runner(loop_factory=lambda kind=kind, selector=selector: kind(selector)) as runner:
            assert runner.run(many_calls()) == AT_ONCE
        turns[kind] = selector.turns
    # About 1,000 and 550.
    assert turns[BurstLoop] < 0.8 * turns[asyncio.SelectorEventLoop]


class Reader:
    """Takes a byte whenever it is called, as gRPC's does."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()
        self.here.setblocking(False)
        self.taken = b""

    def handle(self, given: str) -> None:
        assert given == "given"
        self.taken += self.here.recv(1)


class PollerCompletionQueue(Reader):
    """By its name gRPC's."""


@pytest.mark.parametrize(("kind", "taken"), [(PollerCompletionQueue, b"cde"), (Reader, b"abcdfe")])
def test_only_what_grpc_wakes_it_by_is_taken_together(kind: type[Reader], taken: bytes) -> None:
    loop, reader = BurstLoop(), kind()
    loop.add_reader(reader.here, reader.handle, "given")
    # A turn takes the last byte of what was sent together, or one byte.
    for sent in (b"abc", b"d", b"fe"):
        reader.there.send(sent)
        for _ in sent:
            loop.run_until_complete(asyncio.sleep(0))
    loop.remove_reader(reader.here)
    loop.close()
    reader.here.close()
    reader.there.close()
    assert reader.taken == taken


def test_connections_without_a_file_descriptor_wait_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """The listener's queue holds 50, so asyncio's own loop writes 50 tracebacks, and tries 50 times a second later."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tries = []

    class Loop(BurstLoop):
        def call_at(self, when: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:
            tries.append(getattr(callback, "__name__", ""))
            return super().call_at(when, callback, *args, **more)

    async def serve() -> None:
        taken, told = asyncio.Event(), asyncio.Event()

        class Told(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                told.set()

        class Taken(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                taken.set()
                transport.close()

        handler = Told()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Taken, "127.0.0.1", 0, backlog=50)
        client = socket.socket()
        client.setblocking(False)
        logging.getLogger().addHandler(handler)
        try:
            async with asyncio.timeout(60):
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # those that are open stay open
                await loop.sock_connect(client, server.sockets[0].getsockname())
                await told.wait()
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await taken.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            logging.getLogger().removeHandler(handler)
            client.close()
            server.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(serve())
    assert [record.message for record in caplog.records] == [
        "new connections wait, for all 3 file descriptors are in use: raise ulimit -n"
    ]
    assert tries.count("_start_serving") == 1
