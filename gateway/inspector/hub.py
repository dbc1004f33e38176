"""The managers that can be looked at, and a feed per pool that somebody looks at."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from gateway.inspector.feed import CALL_SECONDS, Feed, Place
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from service.channels import TlsFiles, open_aio_channel
from service.errors import ServiceError, error_info_of

MOST_POOLS_NAMED = 10
SHOWN_NAME = 256
"""Characters of a pool's name repeated in an error."""


class Hub:
    """Belongs to the event loop it is used in; connects when it is first asked.

    Args:
        managers: the KV managers, host:port.
        tls: the way to them.
    """

    def __init__(self, managers: Sequence[str], tls: TlsFiles | None = None) -> None:
        self.managers = tuple(managers)
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._feeds: dict[Place, Feed] = {}
        self._closed = False

    async def pools(self) -> list[dict[str, Any]]:
        """All pools of all managers, and in place of a manager's why it does not answer."""
        listed = await asyncio.gather(*(self._list(manager) for manager in self.managers))
        return [row for rows in listed for row in rows]

    async def feed(self, place: Place) -> Feed:
        """The feed of a pool that is there.

        Raises:
            ServiceError: no such manager or pool, or it does not answer.
        """
        if place.manager not in self.managers:
            message = f"{place.manager!r} is none of the KV managers that can be looked at"
            raise ServiceError(grpc.StatusCode.NOT_FOUND, message, reason="UNKNOWN_MANAGER")
        while not self._closed:
            feed = self._feeds.get(place) or Feed(place, self.stub(place.manager), self._forget)
            try:
                await feed.look()
            except grpc.aio.AioRpcError as error:
                raise await self._refused(error, place) from error
            # Its last viewer may have left meanwhile.
            if not self._closed and not feed.over:
                return self._feeds.setdefault(place, feed)
        raise ServiceError(grpc.StatusCode.UNAVAILABLE, "the service is shutting down", reason="SHUTTING_DOWN")

    def stub(self, manager: str) -> "kv_manager_pb2_grpc.KvManagerServiceAsyncStub":
        """Calls to a manager."""
        channel = self._channels.get(manager)
        if channel is None:
            channel = self._channels[manager] = open_aio_channel(manager, self._tls)
        return kv_manager_pb2_grpc.KvManagerServiceStub(channel)

    async def close(self) -> None:
        """End every stream and let go of the connections; no other stream begins."""
        self._closed = True
        for feed in [*self._feeds.values()]:
            feed.end()
        for channel in self._channels.values():
            await channel.close()

    def _forget(self, feed: Feed) -> None:
        if self._feeds.get(feed.place) is feed:
            del self._feeds[feed.place]

    async def _refused(self, error: grpc.aio.AioRpcError, place: Place) -> ServiceError:
        """What a failed look is to the viewer: where the pool is not there, which ones are."""
        refused = explained(error, place.manager)
        if refused.reason != "POOL_NOT_FOUND":
            return refused
        rows = await self._list(place.manager)
        pools = [row["pool"] for row in rows if "pool" in row][:MOST_POOLS_NAMED]
        there = f"its pools are {', '.join(map(repr, pools))}" if pools else rows[0]["trouble"]
        message = f"KV manager {place.manager} has no pool {place.pool[:SHOWN_NAME]!r}: {there}"
        return ServiceError(refused.code, message, reason=refused.reason)

    async def _list(self, manager: str) -> list[dict[str, Any]]:
        try:
            answer = await self.stub(manager).ListPools(inspect_pb2.ListPoolsRequest(), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            return [{"manager": manager, "trouble": explained(error, manager).message}]
        if not answer.pools:
            return [{"manager": manager, "trouble": "no worker has attached a pool yet"}]
        return [
            {
                "manager": manager,
                "pool": summary.header.pool,
                "num_blocks": summary.spec.num_blocks,
                "block_size": summary.spec.block_size,
            }
            for summary in answer.pools
        ]


def explained(error: grpc.aio.AioRpcError, manager: str) -> ServiceError:
    """What a manager's failed call is to whoever looks."""
    info = error_info_of(error)
    reason = info.reason if info is not None else "MANAGER_UNREACHABLE"
    said = error.details() or error.code().name
    return ServiceError(error.code(), f"KV manager {manager}: {said}", reason=reason)
