"""What watchers are told: the events of a step, and the snapshot to start from."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kv_manager.core import views
from kv_manager.core.journal import Journal
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork
from octavo.kv.v1 import watch_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

PIECE = 4_096
"""Digests or blocks per piece of a snapshot."""


class Before(NamedTuple):
    """Who lived before a step, and who of them was parked."""

    sequences: dict[int, Sequence]
    parked: frozenset[int]

    @classmethod
    def of(cls, pool: "Pool") -> "Before":
        parked = frozenset(seq for seq, sequence in pool.sequences.items() if not sequence.running)
        return cls(dict(pool.sequences), parked)


def record_step(pool: "Pool", journal: Journal, work: StepWork, before: Before) -> None:
    """Derive the events of a step from its request and answer; cache events came while it was served.

    Args:
        before: who lived before the step.
    """
    if journal.records(watch_pb2.EVENT_KIND_SEQUENCES):
        for event in _sequence_events(pool, work, before):
            journal.add(watch_pb2.EVENT_KIND_SEQUENCES, watch_pb2.WatchResponse(sequence_event=event))
    if journal.records(watch_pb2.EVENT_KIND_TABLES):
        for table in _table_events(pool, work, before):
            journal.add(watch_pb2.EVENT_KIND_TABLES, watch_pb2.WatchResponse(table=table))
    record_changes(pool, journal)


def record_changes(pool: "Pool", journal: Journal) -> None:
    """Tell what has changed, be it by a step or by an operator."""
    if journal.records(watch_pb2.EVENT_KIND_BLOCKS) and journal.blocks:
        changed = watch_pb2.BlocksChanged(blocks=views.block_infos(pool, sorted(journal.blocks)))
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


def snapshot(pool: "Pool", kinds: frozenset[int], sequence: int) -> list[watch_pb2.WatchResponse]:
    """The state to start from, in pieces; every piece carries the number of the last event it includes."""
    pieces: list[watch_pb2.Snapshot] = []
    if watch_pb2.EVENT_KIND_CACHE in kinds:
        blocks = pool.blocks
        digests = [digest for digest in blocks.index.digests() if blocks.first_confirmed_holder(digest)]
        for start in range(0, len(digests), PIECE):
            pieces.append(watch_pb2.Snapshot(digests=digests[start : start + PIECE]))
    if watch_pb2.EVENT_KIND_BLOCKS in kinds:
        grantable, _ = pool.blocks.listed()
        free = set(grantable)
        busy = [block for block in range(1, pool.blocks.high_water + 1) if block not in free]
        infos = views.block_infos(pool, busy)
        for start in range(0, len(infos), PIECE):
            pieces.append(watch_pb2.Snapshot(blocks=infos[start : start + PIECE]))
    if kinds & {watch_pb2.EVENT_KIND_SEQUENCES, watch_pb2.EVENT_KIND_TABLES}:
        summaries = [views.sequence_summary(pool, sequence) for sequence in views.by_rank(pool)]
        for start in range(0, len(summaries), PIECE):
            pieces.append(watch_pb2.Snapshot(sequences=summaries[start : start + PIECE]))
    header = pool.header()
    told = [watch_pb2.WatchResponse(header=header, sequence=sequence, snapshot=piece) for piece in pieces]
    if watch_pb2.EVENT_KIND_TABLES in kinds:
        for each in views.by_rank(pool):
            table = watch_pb2.TableChanged(seq=each.id, blocks=each.table)
            told.append(watch_pb2.WatchResponse(header=header, sequence=sequence, table=table))
    last = watch_pb2.Snapshot(last=True)
    return [*told, watch_pb2.WatchResponse(header=header, sequence=sequence, snapshot=last)]


class Watch:
    """One watcher's view of a pool: ``poll`` says what it has not heard yet.

    Args:
        after: the number of the last event heard of this pool's journal, None for a snapshot first.
        notify: called when there is something to poll; must not call back.
    """

    def __init__(self, pool: "Pool", kinds: frozenset[int], after: int | None, notify: Callable[[], None]) -> None:
        self._pool = pool
        self._journal = pool.watch()
        self._watcher = self._journal.open(kinds, after, notify)

    @property
    def ended(self) -> bool:
        """Whether the pool is gone, so that nothing will follow what was polled."""
        return self._journal.dropped is not None

    def poll(self) -> list[watch_pb2.WatchResponse]:
        """What happened since, or the state now for one who cannot be told step by step."""
        journal, watcher = self._journal, self._watcher
        responses: list[watch_pb2.WatchResponse] = []
        if journal.dropped is None and journal.lost(watcher):
            journal.begin(watcher)
            responses = snapshot(self._pool, watcher.kinds, watcher.sequence)
        elif not journal.lost(watcher):
            responses = list(journal.next_events(watcher))
        if journal.dropped is not None:
            gone = watch_pb2.PoolDropped(reason=journal.dropped)
            header, sequence = self._pool.header(), watcher.sequence + 1
            responses.append(watch_pb2.WatchResponse(header=header, sequence=sequence, pool_dropped=gone))
        return responses

    def close(self) -> None:
        """Watch no longer."""
        self._journal.close(self._watcher)
