"""The token ids that stand in blocks, by digest: users' text, followed only where both operators allowed it to be told.

A Watch of its own, apart from the one that viewers are fed from, so that no recording of theirs can hold a token.
"""

import asyncio
import contextlib
from array import array
from collections.abc import Iterator

import grpc.aio

from octavo.kv.v1 import kv_manager_pb2_grpc, watch_pb2

TOKEN_BYTES = 4
BATCH_MS = 250
SECONDS_BETWEEN_TRIES = 1.0


class TokenIds:
    """Follows a pool's digests from its making until ``close``.

    Args:
        pool: the pool's name.
        block_size: tokens in a block.
    """

    def __init__(self, stub: "kv_manager_pb2_grpc.KvManagerServiceAsyncStub", pool: str, block_size: int) -> None:
        self._stub = stub
        self._request = watch_pb2.WatchRequest(
            pool=pool, kinds=[watch_pb2.EVENT_KIND_CACHE], include_token_ids=True, batch_ms=BATCH_MS
        )
        self._block_bytes = block_size * TOKEN_BYTES
        self._ids: dict[bytes, bytes] = {}
        self._task = asyncio.create_task(self._run())

    def get(self, digest: bytes) -> list[int] | None:
        """The ids in the block that holds a digest; None where they were not told."""
        ids = self._ids.get(digest)
        return None if ids is None else list(array("I", ids))

    async def close(self) -> None:
        """Follow no longer, and forget."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._ids.clear()

    def hear(self, response: watch_pb2.WatchResponse) -> None:
        """One message of the stream."""
        for event in response.batch.events if response.HasField("batch") else (response,):
            match event.WhichOneof("event"):
                case "stored":
                    self._ids.update(zip(event.stored.digests, self._cut(event.stored.token_ids), strict=False))
                case "removed":
                    for digest in event.removed.digests:
                        self._ids.pop(digest, None)
                case "cleared" | "pool_dropped":
                    self._ids.clear()
                case _:
                    pass

    def _cut(self, token_ids: bytes) -> Iterator[bytes]:
        """Block by block; nothing when the event came without ids."""
        for start in range(0, len(token_ids), self._block_bytes):
            yield token_ids[start : start + self._block_bytes]

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for response in self._stub.Watch(self._request):
                    self.hear(response)
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)
