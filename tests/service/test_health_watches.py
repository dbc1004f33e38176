"""Watches of gRPC's health service, kept open by clients with health checking: they hear of a drain, and hold none."""

import asyncio
from typing import Any, cast

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.gateway.v1 import operator_pb2, operator_pb2_grpc
from service.health import Health
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


async def test_whoever_stays_hears_on_when_another_has_left() -> None:
    server = Server([SERVICE], lambda target: None)
    address = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address) as one, grpc.aio.insecure_channel(address) as other:
        watches = [health_pb2_grpc.HealthStub(each).Watch(health_pb2.HealthCheckRequest()) for each in (one, other)]
        leaves, stays = map(aiter, watches)
        assert [(await anext(each)).status for each in (leaves, stays)] == [NOT_SERVING] * 2
        watches[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await anext(leaves)
        await server.set_ready(True)
        assert (await anext(stays)).status == SERVING
        await server.stop(GRACE_SECONDS)


async def test_watches_that_come_while_it_drains_hear_so_and_end() -> None:
    """Each is told how things stand, and no write of one is cut: the call would never end."""
    health = Health(["", SERVICE])
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    health.leave()
    health.end_watches()
    health.set(serving=True)  # a late poller
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service, status in ((SERVICE, NOT_SERVING), ("another", health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)):
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=service))
            assert [response.status async for response in watch] == [status]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="another"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await server.stop(GRACE_SECONDS)


class Unread:
    """A call whose client never reads: what is written to it is never sent."""

    def __init__(self) -> None:
        self.writes = asyncio.Event()

    async def write(self, response: health_pb2.HealthCheckResponse) -> None:
        self.writes.set()
        await asyncio.Event().wait()


async def test_one_who_reads_nothing_holds_up_no_change() -> None:
    health, context = Health([""]), Unread()
    watching = asyncio.create_task(health.Watch(health_pb2.HealthCheckRequest(), cast(Any, context)))
    await context.writes.wait()
    health.set(serving=True)
    assert (await health.Check(health_pb2.HealthCheckRequest(), cast(Any, context))).status == SERVING
    health.leave()
    watching.cancel()
