"""One Watch stream for all who look at a pool, and a glance at its totals every second."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from gateway.inspector import frames
from gateway.inspector.pool_state import PoolState
from gateway.inspector.viewers import Viewer
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc, watch_pb2
from service.watched import PAGE_KINDS, Gap

logger = logging.getLogger(__name__)

BATCH_MS = 100
"""What happens meanwhile comes in one message: a message costs the manager more than an event."""
LOOK_SECONDS = 1.0
SECONDS_BETWEEN_TRIES = 1.0
CALL_SECONDS = 5.0
PROGRAM = "octavo inspector"

Ended = Callable[["Feed"], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A pool of a manager.

    Attributes:
        manager: its address, host:port.
        pool: the pool's name.
    """

    manager: str
    pool: str


class Feed:
    """Follows a pool while somebody looks at it. When its manager falls silent all viewers' streams end: they come
    back by themselves, and hear what is wrong.

    Args:
        ended: called once, when it follows no longer.

    Attributes:
        over: it has ended, and does not begin again.
    """

    def __init__(self, place: Place, stub: "kv_manager_pb2_grpc.KvManagerServiceAsyncStub", ended: Ended) -> None:
        self.place = place
        self.over = False
        self._stub = stub
        self._ended = ended
        self._state = PoolState()
        self._viewers: set[Viewer] = set()
        self._look: inspect_pb2.InspectPoolResponse | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def look(self) -> inspect_pb2.InspectPoolResponse:
        """The pool at a glance.

        Raises:
            AioRpcError: the manager does not answer, or has no such pool.
        """
        request = inspect_pb2.InspectPoolRequest(pool=self.place.pool)
        self._look = await self._stub.InspectPool(request, timeout=CALL_SECONDS)
        return self._look

    async def frames(self, viewer: Viewer) -> AsyncGenerator[bytes]:
        """What a viewer is told, from a record's header on; ends when the feed does. ``look`` has answered before.

        Args:
            viewer: looks from the first frame asked for until this iterator is closed.
        """
        assert self._look is not None, "a feed is looked at before it is followed"
        if self.over:
            return
        self._join(viewer)
        try:
            yield frames.header(self._look.summary.header.manager_id, PROGRAM)
            while not viewer.ended:
                if viewer.lost and self._state.complete:
                    viewer.begin()
                    pieces = self._state.snapshot()  # of this very moment, whenever the viewer reads on
                    yield frames.looked(self._look)
                    for piece in pieces:
                        yield frames.watched(piece)
                        await asyncio.sleep(0)  # others' events are told meanwhile
                elif waiting := viewer.take():
                    yield waiting
                else:
                    await viewer.changed()
        finally:
            self._leave(viewer)

    def end(self) -> None:
        """Follow no longer; every viewer's stream ends. A second time nothing happens."""
        if self.over:
            return
        self.over = True
        for task in self._tasks:
            task.cancel()
        for viewer in self._viewers:
            viewer.end()
        self._tasks, self._state = [], PoolState()
        self._ended(self)

    def _join(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._guarded(work)) for work in (self._follow, self._glance)]

    def _leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers:
            self.end()

    def _tell(self, frame: bytes) -> None:
        for viewer in self._viewers:
            viewer.tell(frame)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except grpc.aio.AioRpcError as error:
            logger.info("pool %r of %s is not followed: %s", self.place.pool, self.place.manager, error.code().name)
        except Exception:
            logger.exception("pool %r of %s is not followed", self.place.pool, self.place.manager)
        self.end()

    async def _glance(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._tell(frames.looked(await self.look()))

    async def _follow(self) -> None:
        """Watch until the pool is gone; after a gap from a snapshot anew, a while later."""
        while True:
            call = self._stub.Watch(watch_pb2.WatchRequest(pool=self.place.pool, kinds=PAGE_KINDS, batch_ms=BATCH_MS))
            try:
                async for response in call:
                    await self._hear(response)
                return
            except Gap:
                logger.warning("pool %r of %s: an event was lost", self.place.pool, self.place.manager)
                self._lose()
            finally:
                call.cancel()
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)

    def _lose(self) -> None:
        """What is known here, and what viewers know, is void."""
        self._state = PoolState()
        for viewer in self._viewers:
            viewer.lose()

    async def _hear(self, response: watch_pb2.WatchResponse) -> None:
        if self._state.begins(response):
            # The pool may be another one by now.
            self._lose()
            await self.look()
        before = self._state.complete
        self._state.hear(response)
        if not before:
            if self._state.complete:
                for viewer in self._viewers:
                    viewer.wake()
        else:
            self._tell(frames.watched(response))
