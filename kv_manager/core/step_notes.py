"""What a step has changed, noted for watchers from its request, its answer and the pool behind it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kv_manager.core.events import Blocks, Life, Table
from kv_manager.core.journal import Journal
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork
from kv_manager.core.views import Glance
from octavo.kv.v1 import steps_pb2, watch_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


class Before(NamedTuple):
    """Who lived before a step, and who of them was parked."""

    sequences: dict[int, Sequence]
    parked: frozenset[int]

    @classmethod
    def of(cls, pool: "Pool") -> "Before":
        parked = [sequence.id for group in pool.host.parked for sequence in pool.groups[group]]
        return cls(pool.sequences.copy(), frozenset(parked))


Grown = tuple[int, int, int]
"""(sequence, first index, number of blocks) of a grant, read from the answer once."""


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
    grown = [(grant.seq, grant.first_index, len(grant.blocks)) for grant in work.response.grants]
    if journal.records(watch_pb2.EVENT_KIND_TABLES):
        for table in _tables(pool, work, before, grown):
            journal.add(watch_pb2.EVENT_KIND_TABLES, table)
    record_changes(pool, journal, _ends(pool, work, grown))


def record_changes(pool: "Pool", journal: Journal, ends: dict[int, int]) -> None:
    """Tell what has changed, be it by a step or by an operator.

    Args:
        ends: where in which tables most of the changed blocks are, see ``views.find_owners``.
    """
    if journal.records(watch_pb2.EVENT_KIND_BLOCKS) and journal.blocks:
        journal.add(watch_pb2.EVENT_KIND_BLOCKS, Blocks.of(pool, sorted(journal.blocks), ends))
    journal.record(pool.step)


def _ends(pool: "Pool", work: StepWork, grown: list[Grown]) -> dict[int, int]:
    """The tables that a step lets grow and whose blocks it fills, from the first such entry on."""
    ends = {seq: first_index for seq, first_index, _ in grown}
    commits = work.request.commits
    for seq, start in zip(commits.seqs[:], commits.starts[:], strict=True):
        index = start // pool.block_size
        ends[seq] = min(index, ends.get(seq, index))
    return ends


def _lives(pool: "Pool", work: StepWork, before: Before) -> Iterator[Life]:
    request, response = work.request, work.response
    after = pool.sequences
    seen = {**before.sequences, **after} if request.forks or response.preempted else {}
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


def _tables(pool: "Pool", work: StepWork, before: Before, grown: list[Grown]) -> Iterator[Table]:
    """Every changed table from its first changed entry on."""
    response, sequences = work.response, pool.sequences
    first: dict[int, int] = {}
    for seq, index, num_blocks in grown:
        if num_blocks:
            first[seq] = min(index, first.get(seq, index))
    if response.HasField("replaced"):
        replaced = response.replaced
        for seq, index in zip(replaced.seqs, replaced.indexes, strict=True):
            first[seq] = min(index, first.get(seq, index))
    for fork in work.request.forks:
        first.update(dict.fromkeys(fork.children, 0))
    for victim in response.preempted:
        first[victim.seq] = 0
    if not before.sequences.keys() <= sequences.keys():
        first.update(dict.fromkeys(before.sequences.keys() - sequences.keys(), 0))
    for seq in sorted(first):
        table = sequences[seq].table if seq in sequences else []
        index = min(first[seq], len(table))
        yield Table(seq, index, table[index:])
