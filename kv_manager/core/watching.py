"""What watchers are told: the events of a step, and a watcher's way through them."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kv_manager.core.events import Blocks, Life, Table
from kv_manager.core.journal import Entry, Interest, Journal, Watcher
from kv_manager.core.sequence import Sequence
from kv_manager.core.slices import SLICE_BLOCKS, Sliced
from kv_manager.core.snapshots import snapshot
from kv_manager.core.step_work import StepWork
from kv_manager.core.views import Glance
from octavo.kv.v1 import steps_pb2, watch_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

BATCH_BYTES = 1 << 20
"""A batch ends with the event that makes it so large."""
SLICE_WEIGHT = 4 * SLICE_BLOCKS
"""Blocks, digests and table entries told per slice, in about 0.3 ms."""
EVENT_WEIGHT = 4
"""What an event takes beside them, in blocks."""


class Before(NamedTuple):
    """Who lived before a step, and who of them was parked."""

    sequences: dict[int, Sequence]
    parked: frozenset[int]

    @classmethod
    def of(cls, pool: "Pool") -> "Before":
        parked = frozenset(sequence.id for group in pool.host.parked for sequence in pool.groups[group])
        return cls(dict(pool.sequences), parked)


def record_step(pool: "Pool", journal: Journal, work: StepWork, before: Before) -> None:
    """Note the events of a step from its request and answer; cache events came while it was served.

    Args:
        before: who lived before the step.
    """
    if journal.records(watch_pb2.EVENT_KIND_SEQUENCES):
        for life in _lives(pool, work, before):
            journal.add(watch_pb2.EVENT_KIND_SEQUENCES, life)
    if journal.ids is not None:
        journal.ids.learn(pool, before.sequences)
    if journal.records(watch_pb2.EVENT_KIND_TABLES):
        for table in _tables(pool, work, before):
            journal.add(watch_pb2.EVENT_KIND_TABLES, table)
    record_changes(pool, journal, _ends(pool, work))


def record_changes(pool: "Pool", journal: Journal, ends: dict[int, int]) -> None:
    """Tell what has changed, be it by a step or by an operator.

    Args:
        ends: where in which tables most of the changed blocks are, see ``views.find_owners``.
    """
    if journal.records(watch_pb2.EVENT_KIND_BLOCKS) and journal.blocks:
        journal.add(watch_pb2.EVENT_KIND_BLOCKS, Blocks.of(pool, sorted(journal.blocks), ends))
    journal.record(pool.header())


def _ends(pool: "Pool", work: StepWork) -> dict[int, int]:
    """The tables that a step lets grow and whose blocks it fills, from the first such entry on."""
    ends = {grant.seq: grant.first_index for grant in work.response.grants}
    commits = work.request.commits
    for seq, start in zip(commits.seqs[:], commits.starts[:], strict=True):
        index = start // pool.block_size
        ends[seq] = min(index, ends.get(seq, index))
    return ends


def _lives(pool: "Pool", work: StepWork, before: Before) -> Iterator[Life]:
    request, response = work.request, work.response
    after = pool.sequences
    seen = {**before.sequences, **after}
    for fork in request.forks:
        for child in fork.children:
            if child in seen:
                yield Life(Glance.of(seen[child]), watch_pb2.SEQUENCE_EVENT_TYPE_FORKED)
    for release in request.releases:
        if release.seq in before.sequences:
            yield Life(Glance.of(before.sequences[release.seq]), watch_pb2.SEQUENCE_EVENT_TYPE_RELEASED)
    for victim in response.preempted:
        if victim.seq in seen:
            told = steps_pb2.Preempted()
            told.CopyFrom(victim)  # which would keep the whole answer
            yield Life(Glance.of(seen[victim.seq]), watch_pb2.SEQUENCE_EVENT_TYPE_PREEMPTED, preempted=told)
    for rejected in response.rejected:
        if rejected.seq in before.sequences:
            yield Life(Glance.of(before.sequences[rejected.seq]), watch_pb2.SEQUENCE_EVENT_TYPE_REJECTED)
    again = {admit.seq: admit.again for admit in request.admits}
    if not again and not before.parked:
        return
    for grant in response.grants:
        if grant.seq in again:
            kind = (
                watch_pb2.SEQUENCE_EVENT_TYPE_READMITTED if again[grant.seq] else watch_pb2.SEQUENCE_EVENT_TYPE_ADMITTED
            )
            yield Life(Glance.of(after[grant.seq]), kind, cached_tokens=grant.cached_tokens)
        elif grant.seq in before.parked:
            yield Life(Glance.of(after[grant.seq]), watch_pb2.SEQUENCE_EVENT_TYPE_RESUMED)


def _tables(pool: "Pool", work: StepWork, before: Before) -> Iterator[Table]:
    """Every changed table from its first changed entry on."""
    request, response = work.request, work.response
    first: dict[int, int] = {}
    for fork in request.forks:
        for child in fork.children:
            first[child] = 0
    for seq in before.sequences.keys() - pool.sequences.keys():
        first[seq] = 0
    for victim in response.preempted:
        first[victim.seq] = 0
    replaced = response.replaced
    for seq, index in zip(replaced.seqs, replaced.indexes, strict=True):
        first[seq] = min(index, first.get(seq, index))
    for grant in response.grants:
        if grant.blocks:
            first[grant.seq] = min(grant.first_index, first.get(grant.seq, grant.first_index))
    for seq, index in sorted(first.items()):
        sequence = pool.sequences.get(seq)
        table = sequence.table if sequence is not None else []
        yield Table(seq, min(index, len(table)), table[index:])


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
        self._watcher = self._journal.open(interest, after, notify)

    def poll(self) -> Sliced[watch_pb2.WatchResponse]:
        """What happened since, or the state now for one who cannot be told step by step."""
        journal, watcher = self._journal, self._watcher
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
        entries = self._journal.unread(self._watcher)
        tell = _batches if self._watcher.interest.batched else _singles
        yield from tell(entries, self._watcher)


def _singles(entries: list[Entry], watcher: Watcher) -> Sliced[watch_pb2.WatchResponse]:
    for entry in entries:
        response = watch_pb2.WatchResponse()
        _tell(entry, watcher, response)
        yield response


def _batches(entries: list[Entry], watcher: Watcher) -> Sliced[watch_pb2.WatchResponse]:
    """Events in as few messages as their size allows; one that would be alone comes as it is."""
    batch, size, weight = watch_pb2.WatchResponse(), 0, 0
    for entry in entries:
        event = batch.batch.events.add()
        _tell(entry, watcher, event)
        weight += EVENT_WEIGHT + entry.weight
        size += event.ByteSize()
        if size >= BATCH_BYTES:
            yield _closed(batch)
            batch, size, weight = watch_pb2.WatchResponse(), 0, 0
        elif weight >= SLICE_WEIGHT:
            yield None
            weight = 0
    if size:
        yield _closed(batch)


def _tell(entry: Entry, watcher: Watcher, response: watch_pb2.WatchResponse) -> None:
    """Say an event to a watcher, in an empty message, by its next number."""
    watcher.sequence += 1
    response.CopyFrom(entry.message())
    response.sequence = watcher.sequence
    if not watcher.interest.token_ids and entry.kind == watch_pb2.EVENT_KIND_CACHE and response.HasField("stored"):
        response.stored.ClearField("token_ids")


def _closed(batch: watch_pb2.WatchResponse) -> watch_pb2.WatchResponse:
    events = batch.batch.events
    last = events[-1]
    if len(events) == 1:
        return last
    batch.header.CopyFrom(last.header)
    batch.sequence = last.sequence
    return batch
