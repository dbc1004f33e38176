"""Users' text behind the page: followed while somebody looks at its pool, and forgotten with the Watch it came by."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from gateway.inspector.hub import Hub
from gateway.inspector.site import Site
from gateway.inspector.token_ids import TokenIds
from octavo.kv.v1 import inspect_pb2, watch_pb2

pytestmark = pytest.mark.unit

MANAGER, POOL = "manager:1", "p"
SECONDS = 120.0


class Told:
    """A manager that tells of two blocks by each Watch, with digests and a block size of their own.

    Attributes:
        begun: how many Watches with token ids there were.
        token_watches: how many of them go on.
        lost: set to break the one that goes on.
        told: whether it has told its blocks.
        ended: whether one has ended.
    """

    def __init__(self) -> None:
        self.token_watches = 0
        self.begun = 0
        self.lost = asyncio.Event()
        self.told = asyncio.Event()
        self.ended = asyncio.Event()

    async def InspectPool(self, *_: Any, **__: Any) -> inspect_pb2.InspectPoolResponse:
        return inspect_pb2.InspectPoolResponse()

    def Watch(self, request: watch_pb2.WatchRequest) -> "Call":
        return Call(self, request.include_token_ids)


class Call:
    def __init__(self, manager: Told, token_ids: bool) -> None:
        self._manager = manager
        self._token_ids = token_ids

    def cancel(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[watch_pb2.WatchResponse]:
        manager = self._manager
        if not self._token_ids:
            yield watch_pb2.WatchResponse(sequence=1, snapshot=watch_pb2.Snapshot(last=True))
            await asyncio.Event().wait()
        manager.begun += 1
        manager.token_watches += 1
        try:
            yield stored(manager.begun)
            manager.told.set()
            await manager.lost.wait()
            manager.lost.clear()
        finally:
            manager.token_watches -= 1
            manager.ended.set()


def stored(number: int) -> watch_pb2.WatchResponse:
    """Two blocks of ``number`` tokens each: 0, 1, ... in order."""
    ids = array("I", range(2 * number)).tobytes()
    digests = [bytes([number, block]) for block in range(2)]
    return watch_pb2.WatchResponse(stored=watch_pb2.DigestsStored(digests=digests, token_ids=ids))


class ToldHub(Hub):
    def __init__(self, manager: Told) -> None:
        super().__init__((MANAGER,))
        self._told = manager

    def stub(self, manager: str) -> Any:
        return self._told


async def test_text_is_followed_as_long_as_somebody_looks() -> None:
    manager = Told()
    site = Site(ToldHub(manager), decode=lambda _, ids: str(ids))

    def asked(path: str, **more: str) -> Request:
        query = "&".join(f"{name}={value}" for name, value in {"manager": MANAGER, "pool": POOL, **more}.items())
        return Request({"type": "http", "path": path, "query_string": query.encode(), "headers": []})

    async with asyncio.timeout(SECONDS):
        streams: list[Any] = [(await site.watch(asked("/inspect/watch"))).body_iterator for _ in range(2)]  # type: ignore[attr-defined]
        for stream in streams:
            await anext(stream)
        await manager.told.wait()
        answer = await site.tokens(asked("/inspect/tokens", digest="0101"))
        assert answer.body == b'{"ids":[1],"text":"[1]"}'
        await streams[0].aclose()
        assert manager.token_watches == 1
        await streams[1].aclose()
        await manager.ended.wait()
        answer = await site.tokens(asked("/inspect/tokens", digest="0101"))
        assert answer.body == b'{"ids":null,"text":null}'
    await site.close()


async def test_what_a_lost_watch_told_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool may be another one by then, with blocks of another size: first 1 token, then 2."""
    monkeypatch.setattr("gateway.inspector.token_ids.SECONDS_BETWEEN_TRIES", 0.0)
    manager = Told()
    tokens = TokenIds(manager, POOL)  # type: ignore[arg-type]
    async with asyncio.timeout(SECONDS):
        await manager.told.wait()
        assert [tokens.get(bytes([1, block])) for block in range(2)] == [[0], [1]]
        manager.told.clear()
        manager.lost.set()
        await manager.told.wait()
    assert [tokens.get(bytes([1, block])) for block in range(2)] == [None, None]
    assert [tokens.get(bytes([2, block])) for block in range(2)] == [[0, 1], [2, 3]]
    tokens.end()
