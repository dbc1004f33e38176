"""From the manager's cache events to ``KvEventBatch``: which blocks a prompt may find, told with their token ids.

Subscribers place a block by its content and its parent. Requests of this face have no tenant, salt or adapter, so what
they may find hangs on that one root; blocks of other roots, which are other people's, are not told. Neither is a block
whose parent was not told, because it has no place.
"""

import array
import struct
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2

from model_worker.vllm_face.known_blocks import Block, KnownBlocks
from octavo.kv.v1 import watch_pb2
from service.errors import ServiceError

# Of a chunk: with blocks of 16 tokens some 100 kB, far below what gRPC takes.
SNAPSHOT_BLOCKS = 1024
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
        known: what any subscriber was told; this one adds to it.
    """

    def __init__(self, root: bytes, block_size: int, known: KnownBlocks) -> None:
        self._root = root
        self._block_size = block_size
        self._known = known
        self._told: set[bytes] = set()
        self._cached: set[bytes] = set()

    def batches(self, response: watch_pb2.WatchResponse) -> Iterator[Any]:
        """The batches that an event comes to: one, or of a snapshot's last piece several and of the others none.

        An event of no interest comes to a batch without events: a number that is missing means a loss to a subscriber.

        Raises:
            ServiceError: UNIMPLEMENTED, the manager tells no token ids; UNAVAILABLE, the pool is gone.
        """
        kind = response.WhichOneof("event")
        if kind == "snapshot":
            self._cached.update(response.snapshot.digests)
            if response.snapshot.last:
                yield from self._begin(response.sequence)
            return
        batch = _batch(response.sequence)
        match kind:
            case "stored" if response.stored.parent == self._root or response.stored.parent in self._told:
                for block in self._read(response.stored):
                    self._known.add(block)
                    self._tell(batch, block)
            case "removed":
                gone = [digest for digest in response.removed.digests if digest in self._told]
                self._told.difference_update(gone)
                self._known.remove(gone)
                if gone:
                    batch.events.add(event_id=response.sequence).removed.block_hashes.extend(map(block_hash, gone))
            case "cleared":
                self._told.clear()
                self._known.keep(())
                batch.events.add(event_id=response.sequence).cleared.SetInParent()
            case "pool_dropped":
                message = f"the pool is gone: {response.pool_dropped.reason}"
                raise ServiceError(grpc.StatusCode.UNAVAILABLE, message, reason="POOL_DROPPED", retry_seconds=1.0)
        yield batch

    def _begin(self, sequence: int) -> Iterator[Any]:
        """What is cached now as far as it is known, in chunks numbered up to ``sequence``.

        A snapshot of the manager's has digests but no token ids.
        """
        self._told.clear()
        self._known.keep(self._cached)
        blocks = list(self._known.below(self._root))
        count = min(max(1, -(-len(blocks) // SNAPSHOT_BLOCKS)), sequence)
        size = -(-len(blocks) // count)
        for index in range(count):
            batch = _batch(sequence - count + 1 + index)
            batch.snapshot.index, batch.snapshot.count, batch.snapshot.blocks = index, count, len(blocks)
            batch.snapshot.unknown_before = sequence if len(blocks) < len(self._cached) else 0
            if index == 0:
                batch.events.add().cleared.SetInParent()
            for block in blocks[index * size : (index + 1) * size]:
                self._tell(batch, block, event_id=0)
            yield batch
        self._cached.clear()

    def _read(self, stored: watch_pb2.DigestsStored) -> Iterator[Block]:
        if not stored.token_ids:
            raise ServiceError(grpc.StatusCode.UNIMPLEMENTED, NO_IDS, reason="NO_TOKEN_IDS")
        ids = array.array("I", stored.token_ids)
        if sys.byteorder == "big":
            ids.byteswap()
        parent, size = stored.parent, self._block_size
        for place, digest in enumerate(stored.digests):
            yield Block(digest, parent, ids[place * size : (place + 1) * size])
            parent = digest

    def _tell(self, batch: Any, block: Block, event_id: int | None = None) -> None:
        """One event per block; those of a snapshot have the number 0."""
        event = batch.events.add(event_id=batch.sequence_number if event_id is None else event_id).stored
        if block.parent != self._root:
            event.parent_block_hash = block_hash(block.parent)
        event.blocks.add(block_hash=block_hash(block.digest), token_ids=block.ids, block_size=self._block_size)
        self._told.add(block.digest)


def _batch(sequence: int) -> Any:
    return common_pb2.KvEventBatch(sequence_number=sequence, timestamp=time.time())
