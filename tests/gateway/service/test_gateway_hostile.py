"""Whatever a message to the gateway's gRPC services holds, it is served or refused: never UNKNOWN, never INTERNAL, no
text of the caller's in an error, and nothing left behind.
"""

import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from fuzzing import fuzzing
from google.rpc import error_details_pb2
from hostile_messages import broken_bytes, messages
from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.v1 import gateway_pb2, registry_pb2
from service.errors import status_of

SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"]
METHODS = [method.name for method in SERVICE.methods]
REGISTRY = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]
TOKEN = "sixteen-letters-or-more"

# What a caller can bring about. UNAVAILABLE is not among them: the worker is there, and stays.
ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}
SECRET = "kQ7zvK-nobody-else-says-this"
EXAMPLES = {"ci": 25, "soak": 1500}


class Surface:
    """The gateway's methods as bytes in, code out."""

    def __init__(self, gateway: Any, page: str) -> None:
        self.gateway = gateway
        self.codes: Counter[tuple[str, str]] = Counter()
        self._page = page

    def send(self, method: str, data: bytes, service: Any = SERVICE) -> None:
        streams = service.methods_by_name[method].server_streaming
        path = f"/{service.full_name}/{method}"
        metadata = (("authorization", f"Bearer {TOKEN}"),)  # which only announcements need
        try:
            if streams:
                list(self.gateway.channel.unary_stream(path)(data, timeout=60, metadata=metadata))
            else:
                self.gateway.channel.unary_unary(path)(data, timeout=60, metadata=metadata)
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
            self._check(error)
        assert code in ALLOWED, code
        self.codes[method, code.name] += 1

    def _check(self, error: Any) -> None:
        """An error is short, named and in the service's own words."""
        assert len(error.details()) < 4096
        assert SECRET not in error.details()
        assert SECRET not in str(error.trailing_metadata())
        assert "Traceback" not in error.details()
        status = status_of(error)
        assert status is not None, error
        kinds = [detail.TypeName() for detail in status.details]
        assert kinds.count(error_details_pb2.ErrorInfo.DESCRIPTOR.full_name) == 1
        assert kinds.count(error_details_pb2.RequestInfo.DESCRIPTOR.full_name) == 1

    def running(self) -> list[str]:
        """The gauges of what is under way that are not 0."""
        with urllib.request.urlopen(f"http://{self._page}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        return [line for line in lines if line.startswith("octavo_gateway_running_") and not line.endswith(" 0.0")]


@pytest.fixture
def surface(start_worker: Any, start_gateway: Any) -> Iterator[Surface]:
    worker = start_worker("--max-context", "48")
    announced = ["--registration-token", TOKEN, "--registration-lease-seconds", "0.5"]
    gateway = start_gateway(worker.address, "--metrics", "127.0.0.1:0", "--max-prompt-bytes", "60000", *announced)
    surface = Surface(gateway, gateway.wait_event("ready")["metrics"])
    yield surface
    assert gateway.process.poll() is None
    deadline = time.monotonic() + 60
    while left := surface.running():  # what a client hears last comes a moment before it is counted
        assert time.monotonic() < deadline, left
    assert not [event for event in gateway.seen if event.get("level") == "ERROR"]
    print(dict(surface.codes))


@pytest.mark.e2e
def test_any_message_is_served_or_refused(surface: Surface) -> None:
    fuzz(surface, EXAMPLES["ci"])
    # Past the first checks, too.
    assert {method for method, code in surface.codes if code == "OK"} == set(METHODS)


@pytest.mark.soak
def test_any_message_is_served_or_refused_for_long(surface: Surface) -> None:
    fuzz(surface, EXAMPLES["soak"])
    assert {method for method, code in surface.codes if code == "OK"} == set(METHODS)


@pytest.mark.e2e
def test_any_announcement_is_taken_or_refused(surface: Surface, start_worker: Any) -> None:
    fuzz_announcements(surface, 4 * EXAMPLES["ci"])
    # The list of workers is still kept.
    later = start_worker()
    request = registry_pb2.RegisterRequest(address=later.address).SerializeToString()
    with ThreadPoolExecutor(1) as pool:
        ready = pool.submit(
            surface.gateway.wait_for, lambda event: event.get("message") == f"worker {later.address} is ready"
        )
        while not ready.done():  # half a second of lease may be too short to become ready in
            surface.send("Register", request, REGISTRY)
        ready.result()
    surface.gateway.wait_for(lambda event: event.get("message") == f"worker {later.address} left")


@pytest.mark.soak
def test_any_announcement_is_taken_or_refused_for_long(surface: Surface) -> None:
    fuzz_announcements(surface, EXAMPLES["soak"])


def fuzz_announcements(surface: Surface, examples: int) -> None:
    for data in (announcements(), broken_bytes(REGISTRY.methods_by_name["Register"].input_type)):

        @fuzzing(examples)
        @given(sent=data)
        def every(sent: bytes) -> None:
            surface.send("Register", sent, REGISTRY)

        every()
    assert {code for _, code in surface.codes} == {"OK", "INVALID_ARGUMENT"}


HOSTS = ["", "w", "127.0.0.1", "[::1]", "-", "a..b", "_._"]
NO_HOSTS = ["[::", "[]", "%", "x" * 250, "unix:///w", "dns://w/w", "\0", "\u0663"]


@st.composite
def announcements(draw: Any) -> bytes:
    """Any message, mostly with what may pass for an address; nobody listens on those."""
    message: Any = draw(messages(REGISTRY.methods_by_name["Register"].input_type))
    if draw(st.integers(0, 3)):
        host = draw(st.sampled_from(HOSTS) | st.sampled_from(NO_HOSTS + HOSTS) | st.text(max_size=5))
        port = draw(st.sampled_from([1, 2, 65535]) | st.sampled_from([0, 65536, 99999, 1]))
        message.address = f"{host}:{port}"
    return bytes(message.SerializeToString())


def fuzz(surface: Surface, examples: int) -> None:
    for method in METHODS:
        kind = SERVICE.methods_by_name[method].input_type
        send_all(surface, method, spiked(method), examples)
        send_all(surface, method, broken_bytes(kind), examples)


@st.composite
def spiked(draw: Any, method: str) -> bytes:
    """Any message, with a secret where a caller's text is expected, and mostly for a model that is served."""
    message: Any = draw(messages(SERVICE.methods_by_name[method].input_type))
    if draw(st.integers(0, 7)) and method != "ListModels":
        message.ClearField("model")
    if draw(st.booleans()):
        match message:
            case gateway_pb2.GenerateRequest():
                message.prompt = f"{SECRET}{message.prompt}"
            case gateway_pb2.ChatRequest():
                message.messages.add(role="user", content=SECRET)
            case gateway_pb2.TokenizeRequest():
                message.text = f"{SECRET}{message.text}"
    return bytes(message.SerializeToString())


def send_all(surface: Surface, method: str, data: st.SearchStrategy[bytes], examples: int) -> None:
    @fuzzing(examples)
    @given(sent=data)
    def every(sent: bytes) -> None:
        surface.send(method, sent)

    every()
