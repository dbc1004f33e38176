"""Leases: how long a pool outlives its worker, counted in ticks."""

from dataclasses import dataclass

MAX_TICK_MS = 1_000
"""A tick counts at most this much: a manager that was paused for long must not hold it against its workers."""


@dataclass(slots=True)
class Lease:
    """The lease of one pool. Every answered step and the end of a stream renew it.

    The pool is dropped when nothing is left and no Steps stream is open; with one open it can only be taken by another.

    Attributes:
        length_ms: what a message renews it to.
        remaining_ms: what is left.
        streams: open Steps streams.
    """

    length_ms: int
    remaining_ms: int
    streams: int = 0

    @classmethod
    def fresh(cls, length_ms: int) -> "Lease":
        return cls(length_ms, length_ms)

    def renew(self) -> None:
        """The worker was heard."""
        self.remaining_ms = self.length_ms

    def open_stream(self) -> None:
        """A Steps stream speaks for the pool from now on."""
        self.streams += 1

    def close_stream(self) -> None:
        """A Steps stream has ended; the lease counts from here."""
        self.streams -= 1
        self.renew()

    def tick(self, elapsed_ms: int) -> None:
        """Time has passed; a late tick counts ``MAX_TICK_MS``."""
        self.remaining_ms = max(0, self.remaining_ms - min(elapsed_ms, MAX_TICK_MS))

    @property
    def over(self) -> bool:
        """Whether the worker counts as gone: its stream is broken and the lease has run out."""
        return self.remaining_ms == 0 and self.streams == 0

    @property
    def alive(self) -> bool:
        """Whether the worker holds a stream and was heard within the lease."""
        return self.streams > 0 and self.remaining_ms > 0
