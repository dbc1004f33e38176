"""The journal of a pool: what happened, in order, for whoever watches (design 3.6).

Nothing is recorded until somebody watches, and then only the kinds watched. Every kind is counted on its own, and a
watcher's numbers are the sum over its kinds: they grow by exactly one per event it hears, so it can see a gap itself.

    a step       notes what it changed; its answer waits for no more
    ``settle``   makes numbered entries of the notes, before anybody reads: what blocks have become is looked up then,
                 once for all the steps since
    ``tell``     makes an entry a message, when the first watcher hears it
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kv_manager.core.entries import Entry, Grown, GrownTable, Interest, Single
from kv_manager.core.events import Cleared, Event, Removed, Stored
from octavo.kv.v1 import common_pb2, steps_pb2, watch_pb2

if TYPE_CHECKING:
    from kv_manager.core.block_ids import BlockIds

KINDS = (
    watch_pb2.EVENT_KIND_CACHE,
    watch_pb2.EVENT_KIND_BLOCKS,
    watch_pb2.EVENT_KIND_TABLES,
    watch_pb2.EVENT_KIND_SEQUENCES,
)

REMEMBERED_EVENTS, REMEMBERED_WEIGHT = 16_384, 1 << 19
"""Entries kept for watchers that come back or read slowly, and the blocks, digests and table entries in them, about 100
bytes each; who asks for older ones gets a snapshot instead."""


class Noted(NamedTuple):
    """What a step has changed.

    Attributes:
        events: with their kinds.
        grown: the answer, when its grants say whole how the tables have changed.
        filled: sequences that filled blocks.
        starts: their committed lengths before.
    """

    step: int
    events: list[tuple[int, Event]]
    grown: steps_pb2.StepResponse | None = None
    filled: Sequence[int] = ()
    starts: Sequence[int] = ()


@dataclass(slots=True, eq=False)
class Watcher:
    """Somebody who watches.

    Attributes:
        position: how many entries were recorded when it last read; None while it needs a snapshot.
        heard: how many events of the entry at that place it has heard: it may come back from the middle of one.
        sequence: the number of the last event it was told.
    """

    interest: Interest
    notify: Callable[[], None]
    position: int | None = None
    heard: int = 0
    sequence: int = 0


@dataclass(slots=True)
class Journal:
    """Events of one pool.

    Attributes:
        pool: names it, without a step.
        blocks: blocks touched since blocks were told last.
        noted: steps of which no entries were made yet.
        dropped: why the pool is gone; None while it lives.
        ids: the token ids of blocks to come, None when the operator did not allow them to be told.
    """

    pool: common_pb2.ResponseHeader
    blocks: set[int] = field(default_factory=set)
    dropped: str | None = None
    ids: "BlockIds | None" = None
    noted: list[Noted] = field(default_factory=list)
    _entries: deque[Entry] = field(default_factory=deque)
    _weight: int = 0
    _recorded: int = 0
    _left: int = 0  # entries recorded when a watcher left last
    _counts: dict[int, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    _active: set[int] = field(default_factory=set)
    _watchers: list[Watcher] = field(default_factory=list)
    _fresh: list[tuple[int, Event]] = field(default_factory=list)

    def records(self, kind: int) -> bool:
        """Whether events of ``kind`` are recorded at present."""
        return kind in self._active

    @property
    def follows_cache(self) -> bool:
        """Whether events of digests are recorded at present; to be asked before what to tell is looked for."""
        return watch_pb2.EVENT_KIND_CACHE in self._active

    # --- recording

    def stored(self, parent: bytes, digest: bytes) -> None:
        """Everyone can hit ``digest`` from now on. Consecutive digests of a chain make one event."""
        last = self._fresh[-1][1] if self._fresh else None
        if isinstance(last, Stored) and last.digests[-1] == parent:
            last.digests.append(digest)
        else:
            self.add(watch_pb2.EVENT_KIND_CACHE, Stored(parent, digest))

    def removed(self, digest: bytes) -> None:
        """Nobody can hit ``digest`` any more."""
        last = self._fresh[-1][1] if self._fresh else None
        if isinstance(last, Removed):
            last.digests.append(digest)
        else:
            self.add(watch_pb2.EVENT_KIND_CACHE, Removed(digest))

    def cleared(self, blocks: Iterable[int]) -> None:
        """Every digest is gone; ``blocks`` held them."""
        self.blocks.update(blocks)
        self.add(watch_pb2.EVENT_KIND_CACHE, Cleared())

    def add(self, kind: int, event: Event) -> None:
        """Something happened; it is told when the step is over."""
        if kind in self._active:
            self._fresh.append((kind, event))

    def note(
        self,
        step: int,
        grown: steps_pb2.StepResponse | None = None,
        filled: Sequence[int] = (),
        starts: Sequence[int] = (),
    ) -> None:
        """The step is over: keep what happened in it, see ``Noted``, and wake the watchers."""
        if watch_pb2.EVENT_KIND_BLOCKS not in self._active:
            self.blocks.clear()
        if not (self._fresh or grown or self.blocks):
            return
        if self.ids is not None:
            for _, event in self._fresh:
                if isinstance(event, Stored):
                    event.learn(self.ids)
        self.noted.append(Noted(step, self._fresh, grown, filled, starts))
        self._fresh = []
        self._notify()

    def take_noted(self) -> list[Noted]:
        """The notes of which no entries were made yet; the caller makes them."""
        noted, self.noted = self.noted, []
        return noted

    def record(self, step: int, events: list[tuple[int, Event]], grown: tuple[GrownTable, ...] = ()) -> None:
        """Number what happened in a step.

        Args:
            events: with their kinds.
            grown: tables that have grown and no more, told behind them.
        """
        if not (events or grown):
            return
        header = common_pb2.ResponseHeader()
        header.CopyFrom(self.pool)
        header.step = step
        entries: list[Entry] = [Single(kind, event, header) for kind, event in events]
        if grown:
            entries.append(Grown(grown, header))
        for entry in entries:
            self._counts[entry.kind] += entry.count
            self._weight += entry.weight
        self._entries += entries
        self._recorded += len(entries)
        while len(self._entries) > REMEMBERED_EVENTS or self._weight > REMEMBERED_WEIGHT:
            self._weight -= self._entries.popleft().weight
        self._retire()

    def drop(self, reason: str) -> None:
        """The pool is gone; every watcher hears it and ends."""
        self.dropped = reason
        self._notify()

    def _notify(self) -> None:
        # One that another thread closes meanwhile, beside an embedded manager, must not hide the next.
        for watcher in tuple(self._watchers):
            watcher.notify()

    def _retire(self) -> None:
        """Stop recording kinds that nobody has watched for as long as events are remembered."""
        forgotten = self._recorded - len(self._entries)
        if self._watchers or forgotten <= self._left:
            return
        self._active.clear()
        self._entries.clear()
        self._weight = 0

    # --- watching

    def open(self, interest: Interest, after: int | None, notify: Callable[[], None]) -> Watcher:
        """Begin to watch behind the event numbered ``after``; with None, or when that is too old, with a snapshot."""
        watcher = Watcher(interest, notify)
        for kind in interest.kinds - self._active:
            self._active.add(kind)
            self._counts[kind] += 1  # what happened unrecorded is a gap: positions before it need a snapshot
        if after is not None:
            watcher.position, watcher.heard = self._find(interest.kinds, after)
            watcher.sequence = after
        self._watchers.append(watcher)
        return watcher

    def close(self, watcher: Watcher) -> None:
        """Watch no longer."""
        self._watchers.remove(watcher)
        self._left = self._recorded

    def _find(self, kinds: frozenset[int], after: int) -> tuple[int | None, int]:
        """Where event ``after`` was the last of ``kinds``: how many entries were recorded, and how many events of the
        next one were heard. None if that is forgotten."""
        behind = sum(self._counts[kind] for kind in kinds) - after
        if behind < 0:
            return None, 0
        position = self._recorded
        for entry in reversed(self._entries):
            if behind <= 0:
                break
            position -= 1
            behind -= entry.count if entry.kind in kinds else 0
        return (position, -behind) if behind <= 0 else (None, 0)

    def begin(self, watcher: Watcher) -> None:
        """The watcher is given a snapshot of now."""
        watcher.position, watcher.heard = self._recorded, 0
        watcher.sequence = sum(self._counts[kind] for kind in watcher.interest.kinds)

    def lost(self, watcher: Watcher) -> bool:
        """Whether the watcher needs a snapshot: it has none yet, or read too slowly for what is remembered."""
        return watcher.position is None or self._recorded - watcher.position > len(self._entries)

    def unread(self, watcher: Watcher) -> tuple[list[Entry], int]:
        """What the watcher reads now, and how many events of the first entry it has heard before."""
        assert watcher.position is not None
        count, heard = self._recorded - watcher.position, watcher.heard
        watcher.position, watcher.heard = self._recorded, 0
        entries = [*islice(reversed(self._entries), count)]
        return [entry for entry in reversed(entries) if entry.kind in watcher.interest.kinds], heard
