"""What happened to a pool, noted as plain values while a step is served, made a message when somebody hears it.

A step's answer waits for the notes alone. They are whole: what is told of a step later is what was so at its end.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from kv_manager.core import views
from octavo.kv.v1 import steps_pb2, watch_pb2

if TYPE_CHECKING:
    from kv_manager.core.block_ids import BlockIds
    from kv_manager.core.pool import Pool


class Event(Protocol):
    """Something that happened."""

    @property
    def weight(self) -> int:
        """How many blocks, digests or table entries it tells of."""

    def write(self, response: watch_pb2.WatchResponse) -> None:
        """Say it in an empty message."""


class Stored:
    """Consecutive digests of one chain can be hit from now on; ``token_ids`` are their blocks' as far as known."""

    __slots__ = ("digests", "parent", "token_ids")

    def __init__(self, parent: bytes, digest: bytes) -> None:
        self.parent = parent
        self.digests = [digest]
        self.token_ids = b""

    def learn(self, ids: "BlockIds") -> None:
        """All ids of the event's blocks or none: a reader cuts them by the block size."""
        blocks = [ids.take(digest) for digest in self.digests]
        if all(blocks):
            self.token_ids = b"".join(blocks)

    @property
    def weight(self) -> int:
        return len(self.digests)

    def write(self, response: watch_pb2.WatchResponse) -> None:
        stored = response.stored
        stored.parent = self.parent
        stored.digests.extend(self.digests)
        stored.token_ids = self.token_ids


class Removed:
    """Nobody can hit these digests any more."""

    __slots__ = ("digests",)

    def __init__(self, digest: bytes) -> None:
        self.digests = [digest]

    @property
    def weight(self) -> int:
        return len(self.digests)

    def write(self, response: watch_pb2.WatchResponse) -> None:
        response.removed.digests.extend(self.digests)


class Cleared(NamedTuple):
    """Every digest is gone."""

    @property
    def weight(self) -> int:
        return 1

    def write(self, response: watch_pb2.WatchResponse) -> None:
        response.cleared.SetInParent()


class Blocks(NamedTuple):
    """Changed blocks, column by column.

    Attributes:
        completed: the newest step complete by then; a fence above it stands.
        owners: the sequences that name a block, of referenced blocks.
    """

    ids: list[int]
    ref_counts: list[int]
    digests: list[bytes | None]
    fences: list[int]
    completed: int
    owners: dict[int, list[int]]

    @classmethod
    def of(cls, pool: "Pool", ids: list[int], owners: dict[int, list[int]]) -> "Blocks":
        """Blocks as they are now.

        Args:
            owners: the sequences that name them, and perhaps other blocks.
        """
        blocks = pool.blocks
        ref_count, digest, fence = blocks.ref_count, blocks.digest, blocks.fence
        counts = [ref_count[block] for block in ids]
        return cls(
            ids,
            counts,
            [digest[block] for block in ids],
            [fence[block] for block in ids],
            blocks.completed_step,
            {block: owners[block] for block in ids if block in owners},
        )

    @property
    def weight(self) -> int:
        return len(self.ids)

    def write(self, response: watch_pb2.WatchResponse) -> None:
        add, completed, owners_of = response.blocks.blocks.add, self.completed, self.owners.get
        rows = zip(self.ids, self.ref_counts, self.digests, self.fences, strict=True)
        for block, references, digest, fence in rows:
            views.write_block(add(), block, references, digest, fence if fence > completed else 0, owners_of(block))


class Table(NamedTuple):
    """A table from its first changed entry on."""

    seq: int
    first_index: int
    blocks: list[int]

    @property
    def weight(self) -> int:
        return len(self.blocks)

    def write(self, response: watch_pb2.WatchResponse) -> None:
        table = response.table
        table.seq = self.seq
        table.first_index = self.first_index
        table.blocks.extend(self.blocks)


class Life(NamedTuple):
    """A change in a sequence's life, and the sequence after it."""

    glance: views.Glance
    type: watch_pb2.SequenceEventType
    cached_tokens: int = 0
    preempted: steps_pb2.Preempted | None = None

    @property
    def weight(self) -> int:
        return 1

    def write(self, response: watch_pb2.WatchResponse) -> None:
        event = response.sequence_event
        self.glance.write(event.summary)
        event.type = self.type
        event.cached_tokens = self.cached_tokens
        if self.preempted is not None:
            event.preempted.CopyFrom(self.preempted)
