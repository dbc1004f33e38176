"""A watcher's way through the events of a pool: by themselves or in batches, from a snapshot on or from an event."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kv_manager.core.entries import Interest
from kv_manager.core.slices import SLICE_BLOCKS, Sliced
from kv_manager.core.snapshots import snapshot
from kv_manager.core.step_notes import settle
from octavo.kv.v1 import watch_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

BATCH_BYTES = 1 << 20
"""A batch ends with the slice that makes it so large."""
SLICE_WEIGHT = 4 * SLICE_BLOCKS
"""Blocks, digests and table entries told per slice, in about 0.3 ms."""


class Watch:
    """One watcher's view of a pool: ``poll`` says what it has not heard yet.

    Args:
        after: the number of the last event heard of this pool's journal, None for a snapshot first.
        notify: called when there is something to poll; must not call back.

    Attributes:
        ended: it has heard that the pool is gone; nothing follows.
    """

    def __init__(self, pool: "Pool", interest: Interest, after: int | None, notify: Callable[[], None]) -> None:
        self.ended = False
        self._pool = pool
        self._journal = pool.watch()
        settle(pool, self._journal)
        self._watcher = self._journal.open(interest, after, notify)

    def poll(self) -> Sliced[watch_pb2.WatchResponse]:
        """What happened since, or the state now for one who cannot be told step by step."""
        journal, watcher = self._journal, self._watcher
        if journal.dropped is None:
            settle(self._pool, journal)
        if not journal.lost(watcher):
            yield from self._unheard()
        elif journal.dropped is None:
            journal.begin(watcher)
            yield from snapshot(self._pool, watcher.interest.kinds, watcher.sequence)
        if journal.dropped is not None and not self.ended:
            if not journal.lost(watcher):  # what happened while the rest was told
                yield from self._unheard()
            self.ended = True
            gone = watch_pb2.PoolDropped(reason=journal.dropped)
            header, sequence = self._pool.header(), watcher.sequence + 1
            yield watch_pb2.WatchResponse(header=header, sequence=sequence, pool_dropped=gone)

    def close(self) -> None:
        """Watch no longer."""
        self._journal.close(self._watcher)

    def _unheard(self) -> Sliced[watch_pb2.WatchResponse]:
        """The events since the last poll, by themselves or in batches."""
        watcher = self._watcher
        entries, heard = self._journal.unread(watcher)
        batch, weight, measured, size = watch_pb2.WatchResponse(), 0, 0, 0
        for entry in entries:
            weight += entry.tell(batch.batch.events, watcher.interest, watcher.sequence + 1, heard)
            watcher.sequence += entry.count - heard
            heard = 0
            if not watcher.interest.batched:
                yield from batch.batch.events
                batch = watch_pb2.WatchResponse()
            elif weight >= SLICE_WEIGHT:
                weight = 0
                # Only what came since the last look: a slice takes no longer for those before it.
                size += sum(event.ByteSize() for event in batch.batch.events[measured:])
                measured = len(batch.batch.events)
                if size >= BATCH_BYTES:
                    yield _closed(batch)
                    batch, measured, size = watch_pb2.WatchResponse(), 0, 0
                else:
                    yield None
        if batch.batch.events:
            yield _closed(batch)


def _closed(batch: watch_pb2.WatchResponse) -> watch_pb2.WatchResponse:
    """A batch to be sent; an event that would be alone in it comes as it is."""
    events = batch.batch.events
    last = events[-1]
    if len(events) == 1:
        return last
    batch.header.CopyFrom(last.header)
    batch.sequence = last.sequence
    return batch
