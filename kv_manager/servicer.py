"""The thin gRPC skin: one method per call, streams and leases; everything else is the core's."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from kv_manager.core.errors import bad_item
from kv_manager.core.lease import Lease
from kv_manager.core.manager import Manager
from kv_manager.core.slices import Item, Sliced
from octavo.kv.v1 import attach_pb2, inspect_pb2, kv_manager_pb2, kv_manager_pb2_grpc, lookup_pb2, steps_pb2, watch_pb2
from service.histograms import Times

TURNS_BETWEEN_SLICES = 4
"""Turns of the event loop that a message takes from the socket to its answer: it shall meet one slice on its way."""

Context = grpc.aio.ServicerContext[Any, Any]


class KvManagerServicer(kv_manager_pb2_grpc.KvManagerServiceServicer):
    """Serves a ``Manager``. All calls run on one event loop, so the core sees one at a time."""

    def __init__(self, manager: Manager, step_times: Times) -> None:
        self._manager = manager
        self._step_times = step_times

    async def GetCapabilities(
        self, request: inspect_pb2.GetCapabilitiesRequest, context: Context
    ) -> inspect_pb2.GetCapabilitiesResponse:
        _refuse_what_is_no_message(request)
        return self._manager.get_capabilities()

    async def Attach(
        self, request_iterator: AsyncIterator[attach_pb2.AttachRequest], context: Context
    ) -> attach_pb2.AttachResponse:
        parts = self._manager.attaching()
        async for part in request_iterator:
            parts.add(part)
        response = self._manager.attach(parts)
        # A pool's lists are long and live as long as it does; the collector need not walk them in the middle of a step.
        gc.collect()
        gc.freeze()
        return response

    async def Detach(self, request: attach_pb2.DetachRequest, context: Context) -> attach_pb2.DetachResponse:
        return self._manager.detach(request)

    async def Step(self, request: steps_pb2.StepRequest, context: Context) -> steps_pb2.StepResponse:
        return self._step(request)

    async def Steps(
        self, request_iterator: AsyncIterator[steps_pb2.StepRequest], context: Context
    ) -> AsyncIterator[steps_pb2.StepResponse]:
        lease: Lease | None = None
        owner = ("", 0)
        try:
            async for request in request_iterator:
                if lease is not None and owner != (request.pool, request.epoch):
                    raise bad_item("pool", "STREAM_OF_ANOTHER_POOL", f"this stream belongs to pool {owner[0]!r}")
                response = self._step(request)
                if lease is None:
                    owner = (request.pool, request.epoch)
                    lease = self._manager.lease(*owner)
                    lease.open_stream()
                yield response
        finally:
            if lease is not None:
                lease.close_stream()

    def _step(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        started = time.perf_counter()
        response = self._manager.step(request)
        self._step_times.observe(time.perf_counter() - started)
        return response

    async def MatchPrefix(
        self, request: lookup_pb2.MatchPrefixRequest, context: Context
    ) -> lookup_pb2.MatchPrefixResponse:
        return await self._answer(self._manager.matching(request))

    async def CanAdmit(self, request: lookup_pb2.CanAdmitRequest, context: Context) -> lookup_pb2.CanAdmitResponse:
        return self._manager.can_admit(request)

    async def ListPools(self, request: inspect_pb2.ListPoolsRequest, context: Context) -> inspect_pb2.ListPoolsResponse:
        _refuse_what_is_no_message(request)
        return self._manager.list_pools()

    async def InspectPool(
        self, request: inspect_pb2.InspectPoolRequest, context: Context
    ) -> inspect_pb2.InspectPoolResponse:
        return self._manager.inspect_pool(request)

    async def InspectSequence(
        self, request: inspect_pb2.InspectSequenceRequest, context: Context
    ) -> inspect_pb2.InspectSequenceResponse:
        return await self._answer(self._manager.inspecting_sequence(request))

    async def InspectBlocks(
        self, request: inspect_pb2.InspectBlocksRequest, context: Context
    ) -> inspect_pb2.InspectBlocksResponse:
        return await self._answer(self._manager.inspecting_blocks(request))

    async def CheckIntegrity(
        self, request: inspect_pb2.CheckIntegrityRequest, context: Context
    ) -> inspect_pb2.CheckIntegrityResponse:
        return self._manager.check_integrity(request)

    async def Watch(self, request: watch_pb2.WatchRequest, context: Context) -> AsyncIterator[watch_pb2.WatchResponse]:
        changed, loop, loop_thread = asyncio.Event(), asyncio.get_running_loop(), threading.get_ident()

        def notify() -> None:
            if changed.is_set():
                return
            if threading.get_ident() == loop_thread:
                changed.set()
            else:  # the manager is embedded: its engine calls the core directly
                loop.call_soon_threadsafe(changed.set)

        watch = self._manager.watch(request, notify)
        try:
            while True:
                changed.clear()
                async for response in self._in_slices(watch.poll()):
                    yield response
                if watch.ended:
                    return
                await changed.wait()
                if request.batch_ms:  # what happens meanwhile comes with it
                    await asyncio.sleep(request.batch_ms / 1000)
        finally:
            watch.close()

    async def ResetPrefixCache(
        self, request: kv_manager_pb2.ResetPrefixCacheRequest, context: Context
    ) -> kv_manager_pb2.ResetPrefixCacheResponse:
        return self._manager.reset_prefix_cache(request)

    async def Drain(self, request: kv_manager_pb2.DrainRequest, context: Context) -> kv_manager_pb2.DrainResponse:
        return self._manager.drain(request)

    async def _answer(self, work: Sliced[Item]) -> Item:
        """The one answer that ``work`` makes."""
        (answer,) = [item async for item in self._in_slices(work)]
        return answer

    async def _in_slices(self, work: Sliced[Item]) -> AsyncIterator[Item]:
        """What ``work`` makes; every other call that waits is served between two slices."""
        while True:
            try:
                item = self._manager.run_slice(work)
            except StopIteration:
                return
            if item is not None:
                yield item  # sending it lets others in
                continue
            for _ in range(TURNS_BETWEEN_SLICES):
                await asyncio.sleep(0)


def _refuse_what_is_no_message(request: Message) -> None:
    """For requests without a field, which nobody would look at: a look at a ``MalformedMessage`` refuses the call."""
    request.ByteSize()
