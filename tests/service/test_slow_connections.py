"""A server that is slow to answer a connection is there all the same, for whoever tries once."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cli.calls import channel_to
from service.channels import CHANNEL_OPTIONS, open_channel
from service.probe import probe

pytestmark = pytest.mark.e2e

# Services give an attempt 0.5 s and try again; a probe has 3 s in all.
DELAY_SECONDS = 2 * dict(CHANNEL_OPTIONS)["grpc.min_reconnect_backoff_ms"] / 1000


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server that is SERVING."""
    with ThreadPoolExecutor(1) as pool:
        serving = grpc.server(pool)
        servicer = health.HealthServicer()
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, serving)
        port = serving.add_insecure_port("127.0.0.1:0")
        serving.start()
        yield port
        serving.stop(None).wait()


@pytest.fixture
def slow(server: int) -> Iterator[str]:
    """An address that leads to it, and keeps every connection waiting first, as a machine does that is busy."""
    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def forward(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    if left.wait(DELAY_SECONDS):
                        return
                    there = socket.create_connection(("127.0.0.1", server))
                    for pair in ((client, there), (there, client)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        left.set()


def test_a_probe_and_a_command_wait_for_it(slow: str) -> None:
    assert probe(slow) is None
    with channel_to(slow, "gateway") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_delay_is_more_than_a_service_gives_one_attempt(slow: str) -> None:
    with open_channel(slow) as channel, pytest.raises(grpc.RpcError, match="timed out"):
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
