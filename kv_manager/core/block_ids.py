"""Token ids of blocks, kept from the step that fills them until the event that makes their digests known to everyone.

By then their sequence may be gone, and a block itself knows no ids.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kv_manager.core.prefix import TOKEN_BYTES

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool
    from kv_manager.core.sequence import Sequence

SLACK = 1_024
"""Ids of blocks that were withdrawn or lost stay until there are this many of them."""


class BlockIds:
    """The ids behind the digests of steps in flight, for watchers of a pool whose operator allowed it."""

    __slots__ = ("_ids", "_noted")

    def __init__(self, pool: "Pool") -> None:
        self._ids: dict[bytes, bytes] = {}
        self._noted: dict[int, int] = {}
        self._note(pool, {*self._digests_since(pool, 0)}, pool.sequences)

    def learn(self, pool: "Pool", before: Mapping[int, "Sequence"]) -> None:
        """Note what the step just served fills.

        Args:
            before: the sequences that lived before it; what ended in it may have filled a block first.
        """
        if filled := {*self._digests_since(pool, pool.step)}:
            self._note(pool, filled, {**before, **pool.sequences})
            self._noted = {seq: count for seq, count in self._noted.items() if seq in pool.sequences}
        if len(self._ids) > 2 * len(pool.blocks.unconfirmed) + SLACK:
            wanted = {*self._digests_since(pool, 0)}
            self._ids = {digest: ids for digest, ids in self._ids.items() if digest in wanted}

    def take(self, digest: bytes) -> bytes:
        """The ids behind a digest, empty when they are not known; asked once, when its event is told."""
        return self._ids.pop(digest, b"")

    def _digests_since(self, pool: "Pool", step: int) -> list[bytes]:
        """What ``step`` and later ones fill and nobody outside may hit yet. The newest come last in ``unconfirmed``."""
        found: list[bytes] = []
        for block in reversed(pool.blocks.unconfirmed):
            if pool.blocks.unconfirmed[block] < step:
                break
            digest = pool.blocks.digest[block]
            if digest is not None:
                found.append(digest)
        return found

    def _note(self, pool: "Pool", wanted: set[bytes], sequences: Mapping[int, "Sequence"]) -> None:
        size = pool.block_size * TOKEN_BYTES
        for sequence in sequences.values():
            # A sequence that was parked offers its digests anew when it comes back, from the first one on.
            first = min(self._noted.get(sequence.id, 0), sequence.indexed)
            for index in range(first, len(sequence.digests)):
                digest = sequence.digests[index]
                if digest in wanted:
                    self._ids[digest] = bytes(sequence.ids[index * size : (index + 1) * size])
            self._noted[sequence.id] = sequence.indexed
