"""What a step has changed, noted for watchers from its request, its answer and the pool behind it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kv_manager.core import views
from kv_manager.core.entries import GrownTable
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


NOTED_STEPS, NOTED_BLOCKS = 256, 4_096
"""After so many steps, or so many changed blocks, notes are settled although nobody reads: in some milliseconds."""
EVENT_BLOCKS = 512
"""Changed blocks that one event tells of at most: a long one would hold up the steps."""


def note_step(pool: "Pool", journal: Journal, work: StepWork, before: Before) -> None:
    """Note what a step has changed, from its request and answer; digests and blocks were noted while it was served.

    Args:
        before: who lived before the step.
    """
    request, response = work.request, work.response
    if journal.ids is not None:
        journal.ids.learn(pool, before.sequences)
    # Most steps let tables grow and nothing else, and their answers say it all.
    plain = not (
        request.forks
        or request.releases
        or request.admits
        or request.resumes
        or response.preempted
        or response.rejected
        or response.HasField("replaced")
    )
    if not plain:
        if journal.records(watch_pb2.EVENT_KIND_SEQUENCES):
            for life in _lives(pool, work, before):
                journal.add(watch_pb2.EVENT_KIND_SEQUENCES, life)
        if journal.records(watch_pb2.EVENT_KIND_TABLES):
            for table in _tables(pool, work, before):
                journal.add(watch_pb2.EVENT_KIND_TABLES, table)
    commits = request.commits
    told = journal.records(watch_pb2.EVENT_KIND_TABLES) or journal.records(watch_pb2.EVENT_KIND_BLOCKS)
    grown = response if told and plain and response.grants else None
    journal.note(work.step, grown, commits.seqs[:], commits.starts[:])
    if len(journal.noted) >= NOTED_STEPS or len(journal.blocks) >= NOTED_BLOCKS:
        settle(pool, journal, whole=True)


def settle(pool: "Pool", journal: Journal, *, whole: bool = False) -> None:
    """Make entries of what was noted, so that it can be read: every step's events, then the blocks as they are now.

    Args:
        whole: a step that still counts as being served has done all that it does to the pool.
    """
    ends: dict[int, int] = {}
    for note in journal.take_noted():
        tables = [event for _, event in note.events if isinstance(event, Table)]
        grown: tuple[GrownTable, ...] = ()
        if note.grown is not None:
            rows = [(grant.seq, grant.first_index, tuple(grant.blocks)) for grant in note.grown.grants]
            grown = tuple(sorted([row for row in rows if row[2]]))
        journal.record(note.step, note.events, grown if journal.records(watch_pb2.EVENT_KIND_TABLES) else ())
        for seq, first_index, _ in (*tables, *grown):
            ends[seq] = min(first_index, ends.get(seq, first_index))
        for seq, start in zip(note.filled, note.starts, strict=True):
            index = start // pool.block_size
            ends[seq] = min(index, ends.get(seq, index))
    if journal.blocks and (whole or not pool.torn):
        changed = sorted(journal.blocks)
        journal.blocks.clear()
        # All at once: whoever is not where it is likely is looked for in every table.
        owners = views.find_owners(pool, changed, [pool.blocks.ref_count[block] for block in changed], ends)
        for start in range(0, len(changed), EVENT_BLOCKS):
            blocks = Blocks.of(pool, changed[start : start + EVENT_BLOCKS], owners)
            journal.record(pool.step, [(watch_pb2.EVENT_KIND_BLOCKS, blocks)])


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
    response, sequences = work.response, pool.sequences
    first: dict[int, int] = {}
    for grant in response.grants:
        if grant.blocks:
            first[grant.seq] = min(grant.first_index, first.get(grant.seq, grant.first_index))
    replaced = response.replaced
    for seq, index in zip(replaced.seqs, replaced.indexes, strict=True):
        first[seq] = min(index, first.get(seq, index))
    for fork in work.request.forks:
        first.update(dict.fromkeys(fork.children, 0))
    for victim in response.preempted:
        first[victim.seq] = 0
    first.update(dict.fromkeys(before.sequences.keys() - sequences.keys(), 0))
    for seq in sorted(first):
        table = sequences[seq].table if seq in sequences else []
        index = min(first[seq], len(table))
        yield Table(seq, index, table[index:])
