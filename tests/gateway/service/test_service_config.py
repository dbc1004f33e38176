"""The service config beside the stubs, on real calls: what a client that uses it tries again, and what never."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from importlib import resources
from typing import Any

import grpc
import grpc.aio
import pytest

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from service.channels import open_aio_channel
from service.errors import PUSHBACK_KEY, ServiceError
from service.serving import Server

pytestmark = pytest.mark.unit

CONFIG = resources.files("octavo.gateway.v1").joinpath("service_config.json").read_text()
POLICY = json.loads(CONFIG)["methodConfig"][0]["retryPolicy"]
ATTEMPTS = POLICY["maxAttempts"]


class Flaky(gateway_pb2_grpc.GatewayServiceServicer):
    """Fails each of the next ``failures`` calls with ``code``, ``after`` so many messages."""

    def __init__(self) -> None:
        self.failures = 0
        self.after = 0
        self.code = grpc.StatusCode.UNAVAILABLE
        self.calls = 0

    def Generate(self, request: Any, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
        self.calls += 1
        failing = self.calls <= self.failures
        for _ in range(self.after if failing else 3):
            yield gateway_pb2.GenerateResponse(text="a")
        if failing:
            context.abort(self.code, "not now")


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


@pytest.fixture
def stub(flaky: Flaky) -> Iterator[gateway_pb2_grpc.GatewayServiceStub]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(flaky, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.service_config", CONFIG)]) as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)
    server.stop(0)


def text_of(stub: gateway_pb2_grpc.GatewayServiceStub) -> str:
    return "".join(response.text for response in stub.Generate(gateway_pb2.GenerateRequest(), timeout=60))


def test_it_is_of_every_method_of_the_service() -> None:
    service = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name
    assert json.loads(CONFIG)["methodConfig"][0]["name"] == [{"service": service}]


def test_a_gateway_without_a_worker_is_asked_again_until_it_has_one(
    flaky: Flaky, stub: gateway_pb2_grpc.GatewayServiceStub
) -> None:
    flaky.failures = ATTEMPTS - 1
    assert text_of(stub) == "aaa"
    assert flaky.calls == ATTEMPTS


def test_it_gives_up_after_as_many_attempts(flaky: Flaky, stub: gateway_pb2_grpc.GatewayServiceStub) -> None:
    # 0.1 + 0.2 + 0.4 s between them, each more or less by a fifth: at least 0.56 s.
    flaky.failures = 100
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        text_of(stub)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert flaky.calls == ATTEMPTS
    assert time.monotonic() - began > 0.5


def test_an_answer_that_has_begun_is_never_asked_for_again(
    flaky: Flaky, stub: gateway_pb2_grpc.GatewayServiceStub
) -> None:
    flaky.failures, flaky.after = 1, 1
    with pytest.raises(grpc.RpcError):
        text_of(stub)
    assert flaky.calls == 1


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED]
)
def test_what_waiting_does_not_help_is_not_tried_again(
    flaky: Flaky, stub: gateway_pb2_grpc.GatewayServiceStub, code: grpc.StatusCode
) -> None:
    flaky.failures, flaky.code = 1, code
    with pytest.raises(grpc.RpcError) as caught:
        text_of(stub)
    assert caught.value.code() is code
    assert flaky.calls == 1


class Busy(gateway_pb2_grpc.GatewayServiceServicer):
    """Says with every refusal when to come again."""

    def __init__(self, retry_seconds: float | None) -> None:
        self.error = ServiceError(grpc.StatusCode.UNAVAILABLE, "not now", reason="BUSY", retry_seconds=retry_seconds)
        self.calls = 0

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        self.calls += 1
        raise self.error
        yield  # what makes it a generator


# 0.029 * 1000 is below 29: a client that comes a millisecond too early comes in vain.
@pytest.mark.parametrize(("retry_seconds", "told"), [(None, None), (0.029, "29"), (0.4, "400")])
async def test_a_service_that_says_when_to_come_again_is_asked_again_then(
    retry_seconds: float | None, told: str | None
) -> None:
    busy = Busy(retry_seconds)
    server = Server([], lambda target: gateway_pb2_grpc.add_GatewayServiceServicer_to_server(busy, target))
    address = await server.start("127.0.0.1:0")
    async with open_aio_channel(address, options=[("grpc.service_config", CONFIG)]) as channel:
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [_ async for _ in gateway_pb2_grpc.GatewayServiceStub(channel).Generate(gateway_pb2.GenerateRequest())]
        waited = time.monotonic() - began
    await server.stop(0)
    assert dict(caught.value.trailing_metadata() or ()).get(PUSHBACK_KEY) == told
    assert busy.calls == ATTEMPTS
    # Left to themselves clients wait at most 1.2 * (0.1 + 0.2 + 0.4) s.
    assert retry_seconds != 0.4 or waited > 3 * 0.4
