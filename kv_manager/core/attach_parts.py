"""The messages of one Attach, checked as each comes, so that nothing is kept for a stream that will be refused."""

from collections.abc import Iterator

from kv_manager.core.validation import validate_spec
from octavo.kv.v1 import attach_pb2
from service.errors import ServiceError, invalid_argument

MAX_SNAPSHOT_BYTES = 1 << 30
"""What a snapshot may take: its messages as sent, and SEQUENCE_BYTES for each live sequence."""
SEQUENCE_BYTES = 256
"""What a sequence takes in memory beside its own fields; as sent, an empty one takes two bytes."""


class AttachParts:
    """First the pool, then chunks of live sequences.

    Args:
        max_blocks: the largest pool accepted.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._parts: list[attach_pb2.AttachRequest] = []
        self._bytes = 0

    def __iter__(self) -> Iterator[attach_pb2.AttachRequest]:
        return iter(self._parts)

    def add(self, part: attach_pb2.AttachRequest) -> None:
        """Take the next message.

        Raises:
            ServiceError: INVALID_ARGUMENT; what came before is let go.
        """
        try:
            self._check(part)
        except ServiceError:
            self._parts.clear()
            raise
        self._parts.append(part)

    def _check(self, part: attach_pb2.AttachRequest) -> None:
        kind, index = part.WhichOneof("part"), len(self._parts)
        if index == 0:
            if kind != "pool":
                raise invalid_argument("part", "the first message must carry the pool")
            validate_spec(part.pool, self._max_blocks)
        elif kind != "sequences":
            raise invalid_argument("part", f"message {index} must carry sequences")
        self._bytes += part.ByteSize() + SEQUENCE_BYTES * len(part.sequences.sequences)
        if self._bytes > MAX_SNAPSHOT_BYTES:
            description = (
                f"with message {index} the snapshot takes {self._bytes} bytes, {SEQUENCE_BYTES} for each sequence "
                f"included; must be at most {MAX_SNAPSHOT_BYTES}"
            )
            raise invalid_argument("sequences", description)

    def read(self) -> tuple[attach_pb2.PoolSpec, list[attach_pb2.LiveSequence]]:
        """The pool and its live sequences, when all messages have come.

        Raises:
            ServiceError: INVALID_ARGUMENT; there was no message.
        """
        if not self._parts:
            raise invalid_argument("part", "the first message must carry the pool")
        spec = attach_pb2.PoolSpec()
        spec.CopyFrom(self._parts[0].pool)
        return spec, [live for part in self._parts[1:] for live in part.sequences.sequences]
