"""The queue: sequences without device blocks, best first, in the order in which the manager serves them (rule 3)."""

import bisect
from collections.abc import Callable, Iterator

from model_worker.engine.sequence import Sequence

LOOKS_PER_LEVEL = 8
LOWEST = -(2**31)


class WaitingQueue:
    """Ordered by (level, preempted first, arrival).

    A sequence's level is its priority, less one for every ``ageing_seconds`` it has spent in the queue. So nobody
    starves: a request of priority p goes ahead of all of priority q < p that come more than
    (p - q) * (1 + 1/8) * ageing_seconds after it. The level at its admission is the priority that the manager hears,
    which ranks it against the others there for as long as it runs.
    """

    def __init__(self, clock: Callable[[], float], ageing_seconds: float) -> None:
        self._clock = clock
        self._ageing = ageing_seconds
        self._items: list[Sequence] = []
        self._aged_at = clock()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    @property
    def head(self) -> Sequence:
        """The next one to be served."""
        return self._items[0]

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; one that comes back unserved goes on ageing where it was."""
        now = self._clock()
        if sequence.queued_at is None:
            sequence.queued_at = now
        self._age(sequence, now)
        bisect.insort(self._items, sequence, key=lambda one: one.queue_rank)

    def pop(self) -> Sequence:
        """Take the head."""
        return self._items.pop(0)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out from wherever it stands."""
        self._items.remove(sequence)

    def leave(self, sequence: Sequence) -> None:
        """A sequence taken out has been served: what it waited counts when it comes back."""
        if sequence.queued_at is not None:
            sequence.queued_seconds += self._clock() - sequence.queued_at
            sequence.queued_at = None

    def refresh(self) -> None:
        """Let everybody age; in order again afterwards."""
        now = self._clock()
        if now - self._aged_at < self._ageing / LOOKS_PER_LEVEL:
            return
        self._aged_at = now
        for sequence in self._items:
            self._age(sequence, now)
        self._items.sort(key=lambda one: one.queue_rank)

    def _age(self, sequence: Sequence, now: float) -> None:
        waited = sequence.queued_seconds + now - (now if sequence.queued_at is None else sequence.queued_at)
        sequence.level = max(LOWEST, sequence.priority - int(waited / self._ageing))
