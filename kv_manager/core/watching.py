"""What watchers are told: the events of a step, and a watcher's way through them."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kv_manager.core import views
from kv_manager.core.journal import Interest, Journal
from kv_manager.core.sequence import Sequence
from kv_manager.core.slices import Sliced
from kv_manager.core.snapshots import snapshot
from kv_manager.core.step_work import StepWork
from octavo.kv.v1 import watch_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

BATCH_BYTES = 1 << 20
"""A batch ends with the event that makes it so large."""


class Before(NamedTuple):
    """Who lived before a step, and who of them was parked."""

    sequences: dict[int, Sequence]
    parked: frozenset[int]

    @classmethod
    def of(cls, pool: "Pool") -> "Before":
        parked = frozenset(sequence.id for group in pool.host.parked for sequence in pool.groups[group])
        return cls(dict(pool.sequences), parked)


def record_step(pool: "Pool", journal: Journal, work: StepWork, before: Before) -> None:
    """Derive the events of a step from its request and answer; cache events came while it was served.

    Args:
        before: who lived before the step.
    """
    if journal.records(watch_pb2.EVENT_KIND_SEQUENCES):
        for event in _sequence_events(pool, work, before):
            journal.add(watch_pb2.EVENT_KIND_SEQUENCES, watch_pb2.WatchResponse(sequence_event=event))
    if journal.ids is not None:
        journal.ids.learn(pool, before.sequences)
    if journal.records(watch_pb2.EVENT_KIND_TABLES):
        for table in _table_events(pool, work, before):
            journal.add(watch_pb2.EVENT_KIND_TABLES, watch_pb2.WatchResponse(table=table))
    record_changes(pool, journal, [grant.seq for grant in work.response.grants])


def record_changes(pool: "Pool", journal: Journal, served: Iterable[int] = ()) -> None:
    """Tell what has changed, be it by a step or by an operator.

    Args:
        served: sequences that a step has granted blocks.
    """
    if journal.records(watch_pb2.EVENT_KIND_BLOCKS) and journal.blocks:
        changed = watch_pb2.BlocksChanged(blocks=views.block_infos(pool, sorted(journal.blocks), served))
        journal.add(watch_pb2.EVENT_KIND_BLOCKS, watch_pb2.WatchResponse(blocks=changed))
    journal.record(pool.header())


def _sequence_events(pool: "Pool", work: StepWork, before: Before) -> Iterator[watch_pb2.SequenceEvent]:
    request, response = work.request, work.response
    after = pool.sequences
    seen = {**before.sequences, **after}
    for fork in request.forks:
        for child in fork.children:
            if child in seen:
                yield _event(pool, seen[child], watch_pb2.SEQUENCE_EVENT_TYPE_FORKED)
    for release in request.releases:
        if release.seq in before.sequences:
            yield _event(pool, before.sequences[release.seq], watch_pb2.SEQUENCE_EVENT_TYPE_RELEASED)
    for victim in response.preempted:
        if victim.seq in seen:
            event = _event(pool, seen[victim.seq], watch_pb2.SEQUENCE_EVENT_TYPE_PREEMPTED)
            event.preempted.CopyFrom(victim)
            yield event
    for rejected in response.rejected:
        if rejected.seq in before.sequences:
            yield _event(pool, before.sequences[rejected.seq], watch_pb2.SEQUENCE_EVENT_TYPE_REJECTED)
    again = {admit.seq: admit.again for admit in request.admits}
    for grant in response.grants:
        if grant.seq in again:
            kind = (
                watch_pb2.SEQUENCE_EVENT_TYPE_READMITTED if again[grant.seq] else watch_pb2.SEQUENCE_EVENT_TYPE_ADMITTED
            )
            event = _event(pool, after[grant.seq], kind)
            event.cached_tokens = grant.cached_tokens
            yield event
        elif grant.seq in before.parked:
            yield _event(pool, after[grant.seq], watch_pb2.SEQUENCE_EVENT_TYPE_RESUMED)


def _event(pool: "Pool", sequence: Sequence, kind: watch_pb2.SequenceEventType) -> watch_pb2.SequenceEvent:
    return watch_pb2.SequenceEvent(summary=views.sequence_summary(pool, sequence), type=kind)


def _table_events(pool: "Pool", work: StepWork, before: Before) -> Iterator[watch_pb2.TableChanged]:
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
        yield watch_pb2.TableChanged(seq=seq, first_index=min(index, len(table)), blocks=table[index:])


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

    def _unheard(self) -> Iterator[watch_pb2.WatchResponse]:
        """The events since the last poll, by themselves or in batches."""
        events = self._journal.next_events(self._watcher)
        return _batches(events) if self._watcher.interest.batched else events


def _batches(events: Iterator[watch_pb2.WatchResponse]) -> Iterator[watch_pb2.WatchResponse]:
    """Events in as few messages as their size allows; one that would be alone comes as it is."""
    batch: list[watch_pb2.WatchResponse] = []
    size = 0
    for event in events:
        batch.append(event)
        size += event.ByteSize()
        if size >= BATCH_BYTES:
            yield _batch(batch)
            batch, size = [], 0
    if batch:
        yield _batch(batch)


def _batch(events: list[watch_pb2.WatchResponse]) -> watch_pb2.WatchResponse:
    last = events[-1]
    if len(events) == 1:
        return last
    return watch_pb2.WatchResponse(
        header=last.header, sequence=last.sequence, batch=watch_pb2.WatchBatch(events=events)
    )
