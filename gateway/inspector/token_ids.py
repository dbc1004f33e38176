"""The token ids that stand in blocks, by digest: users' text, followed only where both operators allowed it to be told.

A Watch of its own, apart from the one that viewers are fed from, so that no recording of theirs can hold a token.
"""

import asyncio
import contextlib
from array import array

import grpc.aio

from octavo.kv.v1 import kv_manager_pb2_grpc, watch_pb2

BATCH_MS = 250
SECONDS_BETWEEN_TRIES = 1.0


class TokenIds:
    """Follows a pool's digests from its making until ``end``.

    Args:
        pool: the pool's name.
    """

    def __init__(self, stub: "kv_manager_pb2_grpc.KvManagerServiceAsyncStub", pool: str) -> None:
        self._stub = stub
        self._request = watch_pb2.WatchRequest(
            pool=pool, kinds=[watch_pb2.EVENT_KIND_CACHE], include_token_ids=True, batch_ms=BATCH_MS
        )
        self._ids: dict[bytes, bytes] = {}
        self._task = asyncio.create_task(self._run())

    def get(self, digest: bytes) -> list[int] | None:
        """The ids in the block that holds a digest; None where they were not told."""
        ids = self._ids.get(digest)
        return None if ids is None else list(array("I", ids))

    def end(self) -> None:
        """Follow no longer, and forget."""
        self._task.cancel()
        self._ids.clear()

    def hear(self, response: watch_pb2.WatchResponse) -> None:
        """One message of the stream."""
        for event in response.batch.events if response.HasField("batch") else (response,):
            match event.WhichOneof("event"):
                case "stored":
                    self._ids.update(_by_digest(event.stored))
                case "removed":
                    for digest in event.removed.digests:
                        self._ids.pop(digest, None)
                case "cleared" | "pool_dropped":
                    self._ids.clear()
                case _:
                    pass

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for response in self._stub.Watch(self._request):
                    self.hear(response)
            # Which digests went meanwhile nobody will tell, and the pool may be another one by then.
            self._ids.clear()
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)


def _by_digest(stored: watch_pb2.DigestsStored) -> dict[bytes, bytes]:
    """Each digest's ids; nothing where the event came without. Blocks with a digest are full, so all are of a size."""
    if not stored.token_ids:
        return {}
    block_bytes = len(stored.token_ids) // len(stored.digests)
    return {
        digest: stored.token_ids[start : start + block_bytes]
        for digest, start in zip(stored.digests, range(0, len(stored.token_ids), block_bytes), strict=True)
    }
