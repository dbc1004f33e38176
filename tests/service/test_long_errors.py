"""Errors that are longer than the trailers that clients accept: the code, the reason and what fits arrive."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2

from octavo.gateway.v1 import operator_pb2, operator_pb2_grpc
from service import trailers
from service.errors import ServiceError, error_info_of, status_of
from service.serving import Server

# Of trailers between 8 and 16 KiB clients refuse some, by chance: the more the longer.
CALLS = 20


class Refusing(operator_pb2_grpc.OperatorServiceServicer):
    def __init__(self) -> None:
        self.error: ServiceError | None = None

    async def ListWorkers(self, request: Any, context: Any) -> operator_pb2.ListWorkersResponse:
        assert self.error is not None
        raise self.error


@pytest.fixture
async def refusing() -> AsyncIterator[tuple[Refusing, Any]]:
    servicer = Refusing()
    server = Server(
        ["octavo.gateway.v1.OperatorService"],
        lambda target: operator_pb2_grpc.add_OperatorServiceServicer_to_server(servicer, target),
    )
    address = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address) as channel:
        yield servicer, operator_pb2_grpc.OperatorServiceStub(channel)
    await server.stop(0)


@pytest.mark.e2e
@pytest.mark.parametrize("character", ["w", "ü", "🦊", "%", "\n"])
async def test_a_long_error_keeps_its_code_and_its_reason(refusing: Any, character: str) -> None:
    servicer, stub = refusing
    facts = {f"10.0.0.{number}:50051": character * 200 for number in range(100)}
    servicer.error = ServiceError(
        grpc.StatusCode.UNAVAILABLE,
        character * 20_000,
        reason="NO_WORKER_READY",
        fields=facts,
        metadata=facts,
        retry_seconds=1.0,
    )
    for _ in range(CALLS):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListWorkers(operator_pb2.ListWorkersRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (caught.value.details() or "").startswith(character)
        assert (caught.value.details() or "").endswith("...")
        info = error_info_of(caught.value)
        assert info is not None
        assert info.reason == "NO_WORKER_READY"
        assert "10.0.0.0:50051" in info.metadata
        bad = error_details_pb2.BadRequest()
        assert any(detail.Unpack(bad) for detail in getattr(status_of(caught.value), "details", ()))
        assert bad.field_violations[0].field == "10.0.0.0:50051"


@pytest.mark.unit
def test_what_fits_is_told_whole() -> None:
    """A byte each for a and b, three for a percent sign, six for an umlaut."""
    assert trailers.cut("ab%ü", 11) == "ab%ü"
    assert trailers.cut("ab%ü", 10) == "ab%..."
    assert trailers.cut("abcdefg", 6) == "abc..."
    assert trailers.first_of({"a": "12345", "b": "12345"}, 12) == {"a": "12345", "b": "12345"}
    assert trailers.first_of({"a": "12345", "b": "12345"}, 11) == {"a": "12345", "b": "1..."}
    assert trailers.first_of({"a": "12345", "b": "12345"}, 10) == {"a": "12345"}
