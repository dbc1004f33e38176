"""Several generations as one stream, and a task that ends when its client leaves."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

import grpc
from starlette.types import Receive

from gateway.http.body import ClientLeft
from gateway.http.errors import RETRY_SECONDS, shutting_down
from gateway.http.shapes import FINISH_REASONS, Part
from gateway.streams import Piece
from service.errors import ServiceError

Result = TypeVar("Result")


Source = contextlib.AbstractAsyncContextManager[AsyncGenerator[Piece, None]]


async def merged(sources: Sequence[Source], samples: int) -> AsyncGenerator[Part, None]:
    """The pieces of all sources as they come; one failure ends all.

    Each source is read only as fast as this one, and left with it.

    Args:
        sources: one per prompt.
        samples: answers per prompt; choice = prompt * samples + index of the sample.
    """
    if len(sources) == 1:
        async with sources[0] as only:
            async for piece in only:
                yield Part(0, piece.index, piece)
        return
    parts: asyncio.Queue[Part | BaseException | None] = asyncio.Queue(maxsize=1)

    async def pump(prompt: int, source: Source) -> None:
        end: BaseException | None = None
        try:
            async with source as pieces:
                async for piece in pieces:
                    await parts.put(Part(prompt, prompt * samples + piece.index, piece))
        except Exception as error:
            end = error
        await parts.put(end)

    pumps = [asyncio.create_task(pump(prompt, source)) for prompt, source in enumerate(sources)]
    try:
        running = len(pumps)
        while running:
            match await parts.get():
                case Part() as part:
                    yield part
                case None:
                    running -= 1
                case error:
                    raise error
    finally:
        await _end(pumps)


async def complete(parts: AsyncGenerator[Part, None]) -> AsyncGenerator[Part, None]:
    """Parts of answers that end as answers do.

    Raises:
        ServiceError: UNAVAILABLE for one that was ended from outside.
    """
    async with contextlib.aclosing(parts):
        async for part in parts:
            if part.piece.finish is not None and part.piece.finish.reason not in FINISH_REASONS:
                message = "the answer was ended before it was complete"
                raise ServiceError(grpc.StatusCode.UNAVAILABLE, message, reason="ABORTED", retry_seconds=RETRY_SECONDS)
            yield part


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result], cut_off: asyncio.Future[None]) -> Result:
    """Run ``work`` until it ends, its client closes the connection, or all are cut off: then it is cancelled at once.

    Call it when the body has been read: what is received from then on is the end of the connection.

    Raises:
        ClientLeft: the client left before the end.
        ServiceError: UNAVAILABLE when ``cut_off`` was done before the end.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher, cut_off), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft if watcher.done() else shutting_down()
        return await task
    finally:
        await _end([task, watcher])


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and see them end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
