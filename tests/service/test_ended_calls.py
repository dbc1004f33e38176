"""What a call that was refused leaves behind in the process: nothing, without waiting for a garbage collection."""

import gc
import logging
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from service.errors import ErrorInterceptor, invalid_argument

pytestmark = pytest.mark.unit


class Prompt:
    """Something large that a call holds."""


class Refusing(gateway_pb2_grpc.GatewayServiceServicer):
    """Refuses everything, a long prompt in hand, or fails."""

    def __init__(self) -> None:
        self.prompts: weakref.WeakSet[Prompt] = weakref.WeakSet()

    def _refuse(self) -> None:
        prompt = Prompt()
        self.prompts.add(prompt)
        raise invalid_argument("prompt", "too long")

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        self._refuse()
        yield gateway_pb2.GenerateResponse()

    async def Tokenize(self, request: Any, context: Any) -> gateway_pb2.TokenizeResponse:
        self._refuse()
        return gateway_pb2.TokenizeResponse()

    async def Detokenize(self, request: Any, context: Any) -> gateway_pb2.DetokenizeResponse:
        prompt = Prompt()
        self.prompts.add(prompt)
        raise OSError("broken")


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def calls_of(stub: Any) -> AsyncIterator[grpc.StatusCode]:
    for _ in range(4):
        try:
            async for _ in stub.Generate(gateway_pb2.GenerateRequest(prompt="x")):
                pass
        except grpc.aio.AioRpcError as error:
            yield error.code()
        for call in (stub.Tokenize(gateway_pb2.TokenizeRequest()), stub.Detokenize(gateway_pb2.DetokenizeRequest())):
            try:
                await call
            except grpc.aio.AioRpcError as error:
                yield error.code()


async def test_a_refused_call_keeps_no_frame(collector_off: None, caplog: pytest.LogCaptureFixture) -> None:
    """gRPC keeps the error that ended a call, the error its frames, and they the call: they are cut from it."""
    caplog.set_level(logging.CRITICAL, "service.errors")  # pytest keeps what is logged, and an error with it
    servicer = Refusing()
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            codes = [code async for code in calls_of(gateway_pb2_grpc.GatewayServiceStub(channel))]
    finally:
        await server.stop(None)
    refused, failed = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL
    assert codes == [refused, refused, failed] * 4
    assert len(servicer.prompts) == 0
