"""From the manager's cache events to ``KvEventBatch``: which blocks a prompt may find, told with their token ids.

Subscribers place a block by its content and its parent. Requests of this face have no tenant, salt or adapter, so what
they may find hangs on that one root; blocks of other roots, which are other people's, are not told. Neither is a block
whose parent was not told, because it has no place.
"""

import array
import struct
import sys
import time
from hashlib import sha256
from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2

from octavo.kv.v1 import watch_pb2
from service.errors import ServiceError

NO_IDS = "the KV manager does not tell token ids: start it with --watch-token-ids"


def root_digest(fingerprint: str) -> bytes:
    """The digest before a prompt's first block, without tenant, salt or adapter; layout at ``PrefixRoot``."""
    fields = [
        struct.pack("<BI", tag, len(value)) + value
        for tag, value in enumerate((fingerprint.encode(), b"", b"", b""), 1)
    ]
    return sha256(b"octavo.kv.v1" + b"".join(fields)).digest()


def block_hash(digest: bytes) -> int:
    """A digest's first 64 bits, with a sign."""
    return int.from_bytes(digest[:8], "big", signed=True)


class CacheEvents:
    """One subscriber's way through the events of a pool.

    Args:
        root: see ``root_digest``.
        block_size: the pool's.
    """

    def __init__(self, root: bytes, block_size: int) -> None:
        self._root = root
        self._block_size = block_size
        self._told: set[bytes] = set()
        self._untold = False

    def batch(self, response: watch_pb2.WatchResponse) -> Any | None:
        """The batch that an event comes to, None for all pieces of a snapshot but its last.

        An event of no interest comes to a batch without events: a number that is missing means a loss to a subscriber.
        A snapshot of the manager's has no token ids, so what was cached before stays unknown to the subscriber, who is
        told so.

        Raises:
            ServiceError: UNIMPLEMENTED, the manager tells no token ids; UNAVAILABLE, the pool is gone.
        """
        batch = common_pb2.KvEventBatch(sequence_number=response.sequence, timestamp=time.time())
        match response.WhichOneof("event"):
            case "snapshot":
                self._untold = self._untold or bool(response.snapshot.digests)
                if not response.snapshot.last:
                    return None
                self._begin(batch)
            case "stored" if response.stored.parent == self._root or response.stored.parent in self._told:
                self._store(batch, response.stored)
            case "removed":
                known = [digest for digest in response.removed.digests if digest in self._told]
                self._told.difference_update(known)
                if known:
                    batch.events.add(event_id=response.sequence).removed.block_hashes.extend(map(block_hash, known))
            case "cleared":
                self._told.clear()
                batch.events.add(event_id=response.sequence).cleared.SetInParent()
            case "pool_dropped":
                message = f"the pool is gone: {response.pool_dropped.reason}"
                raise ServiceError(grpc.StatusCode.UNAVAILABLE, message, reason="POOL_DROPPED", retry_seconds=1.0)
        return batch

    def _begin(self, batch: Any) -> None:
        batch.events.add().cleared.SetInParent()
        batch.snapshot.count = 1
        batch.snapshot.unknown_before = batch.sequence_number if self._untold else 0
        self._told.clear()
        self._untold = False

    def _store(self, batch: Any, stored: watch_pb2.DigestsStored) -> None:
        if not stored.token_ids:
            raise ServiceError(grpc.StatusCode.UNIMPLEMENTED, NO_IDS, reason="NO_TOKEN_IDS")
        ids = array.array("I", stored.token_ids)
        if sys.byteorder == "big":
            ids.byteswap()
        event = batch.events.add(event_id=batch.sequence_number).stored
        if stored.parent != self._root:
            event.parent_block_hash = block_hash(stored.parent)
        size = self._block_size
        for place, digest in enumerate(stored.digests):
            tokens = ids[place * size : (place + 1) * size]
            event.blocks.add(block_hash=block_hash(digest), token_ids=tokens, block_size=size)
        self._told.update(stored.digests)
