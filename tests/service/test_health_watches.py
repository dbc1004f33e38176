"""Watches of gRPC's health service, kept open by clients with health checking: they hear of a drain, and hold none."""

import asyncio
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.gateway.v1 import operator_pb2, operator_pb2_grpc
from service.serving import Server

pytestmark = pytest.mark.unit

SERVICE = "octavo.gateway.v1.OperatorService"
# Longer than any test may take.
GRACE_SECONDS = 3_600.0
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Held(operator_pb2_grpc.OperatorServiceServicer):
    """Answers when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def ListWorkers(self, request: Any, context: Any) -> operator_pb2.ListWorkersResponse:
        self.begun.set()
        await self.may_end.wait()
        return operator_pb2.ListWorkersResponse()


async def test_a_watch_hears_of_the_drain_and_ends_when_the_last_call_has() -> None:
    servicer = Held()
    server = Server([SERVICE], lambda target: operator_pb2_grpc.add_OperatorServiceServicer_to_server(servicer, target))
    address = await server.start("127.0.0.1:0")
    await server.set_ready(True)
    async with grpc.aio.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        told = aiter(watch)
        assert (await anext(told)).status == SERVING
        running = operator_pb2_grpc.OperatorServiceStub(channel).ListWorkers(operator_pb2.ListWorkersRequest())
        await servicer.begun.wait()
        stopping = asyncio.create_task(server.stop(GRACE_SECONDS))
        assert (await anext(told)).status == NOT_SERVING
        assert not stopping.done()
        servicer.may_end.set()
        assert await running == operator_pb2.ListWorkersResponse()
        assert [response async for response in told] == []
        await stopping


async def test_a_watch_alone_holds_no_drain() -> None:
    server = Server([SERVICE], lambda target: None)
    address = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await anext(aiter(watch))).status == NOT_SERVING
        await server.stop(GRACE_SECONDS)
