"""Booking the manager's answer: who got which blocks, who waits, and so what the step runs."""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from model_worker.engine.batch import Batch, ContractError, Ended, Row
from model_worker.engine.group import members_of
from model_worker.engine.sequence import EndReason, Phase, Sequence
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from model_worker.engine.scheduler import Scheduler


def book(scheduler: "Scheduler", response: steps_pb2.StepResponse) -> tuple[Batch, list[Ended]]:
    """Book the manager's answer. Returns the batch to run and the sequences it ended.

    Raises:
        ContractError: the answer does not fit the books.
    """
    if response.header.step != scheduler.step + 1:
        raise ContractError(f"answer to step {response.header.step}, expected {scheduler.step + 1}")
    scheduler.step += 1
    scheduler.pool_stats = response.stats
    scheduler.statistics.see_pool(response.stats)
    scheduler.forking.clear()
    ended = [one for rejected in response.rejected for one in _reject(scheduler, rejected)]
    _apply_preemptions(scheduler, response)
    ends = dict(scheduler.planned)
    _apply_refusals(scheduler, response, ends)
    for row, seq in enumerate(response.replaced.seqs):
        _table_owner(scheduler, seq).table[response.replaced.indexes[row]] = response.replaced.blocks[row]
    for grant in response.grants:
        _apply_grant(scheduler, grant, ends)
    if scheduler.asking:
        raise ContractError(f"no answer for what was asked for {sorted(scheduler.asking)}")
    batch = Batch(
        scheduler.step,
        rows_of(scheduler, ends),
        copies=_pairs(response.copies),
        swaps_out=_pairs(response.swaps_out),
        swaps_in=_pairs(response.swaps_in),
    )
    return batch, ended


def _pairs(moves: steps_pb2.BlockMoves) -> list[tuple[int, int]]:
    return list(zip(moves.sources, moves.destinations, strict=True))


def _take_back(scheduler: "Scheduler", seq: int) -> Sequence:
    """Take a sequence out of wherever the books say that the manager knows it; its release stays due."""
    scheduler.planned.pop(seq, None)
    for held in (scheduler.running, scheduler.parked, scheduler.asking):
        if sequence := held.pop(seq, None):
            scheduler.asking.pop(seq, None)  # of a resume: it was parked as well
            return sequence
    raise ContractError(f"sequence {seq} holds no blocks and asks for none")


def _reject(scheduler: "Scheduler", rejected: steps_pb2.Rejected) -> list[Ended]:
    """The manager has released it, and with it its group."""
    sequence = _take_back(scheduler, rejected.seq)
    if sequence.phase is Phase.ENDED:
        if sequence in scheduler.due:
            scheduler.due.remove(sequence)
        return []
    message = f"needs {rejected.needed} blocks, the pool has {rejected.available}"
    for member in members_of(sequence):
        scheduler.end(member, EndReason.REJECTED)
    return [Ended(sequence, message)]


class _Places:
    """Where the blocks of those who are swapped out go.

    Blocks that groups share go once for each group, in the order in which they give way: every group has its own copy.
    """

    def __init__(self, moves: steps_pb2.BlockMoves) -> None:
        self._left: dict[int, deque[int]] = {}
        for block, place in _pairs(moves):
            self._left.setdefault(block, deque()).append(place)
        self._groups: dict[int, dict[int, int]] = {}

    def take(self, sequence: Sequence) -> dict[int, int]:
        """The place of each block of a sequence. To be called for everybody in the answer's order, ended or not."""
        places = self._groups.setdefault(id(sequence if sequence.group is None else sequence.group), {})
        for block in sequence.table:
            if block not in places and (left := self._left.get(block)):
                places[block] = left.popleft()
        return places


def _apply_preemptions(scheduler: "Scheduler", response: steps_pb2.StepResponse) -> None:
    places = _Places(response.swaps_out)
    lost = []
    for victim in response.preempted:
        swapped = victim.mode == steps_pb2.PREEMPTION_MODE_SWAP
        sequence = _take_back(scheduler, victim.seq)
        if swapped:
            moved = places.take(sequence)
            scheduler.parked[victim.seq] = sequence
        elif sequence in scheduler.due:
            scheduler.due.remove(sequence)
        if sequence.phase is Phase.ENDED:
            continue
        if swapped:
            sequence.park([moved[block] for block in sequence.table])
        else:
            sequence.lose_table()
        scheduler.statistics.preemptions += 1
        scheduler.statistics.swaps += swapped
        lost.append(sequence)
    scheduler.requeue(lost)


def _apply_refusals(scheduler: "Scheduler", response: steps_pb2.StepResponse, ends: dict[int, int]) -> None:
    back = []
    for refused in response.waiting:
        sequence = scheduler.asking.pop(refused.seq, None)
        if sequence is None:  # a running sequence sits this step out
            ends.pop(refused.seq, None)
            continue
        sequence.refused = not sequence.parked
        sequence.needed = refused.needed
        sequence.timeline.refusals += 1
        scheduler.delay(sequence)
        back.append(sequence)
    scheduler.requeue(back)


def _apply_grant(scheduler: "Scheduler", grant: steps_pb2.Grant, ends: dict[int, int]) -> None:
    sequence = scheduler.asking.pop(grant.seq, None)
    resumed = sequence is not None and sequence.parked
    if sequence is None:
        sequence = _table_owner(scheduler, grant.seq)
        sequence.forked, sequence.cut_from = False, None
    elif resumed:
        _resume(scheduler, sequence)
    else:
        _enter(scheduler, sequence, grant)
    if grant.first_index != len(sequence.table):
        raise ContractError(
            f"sequence {grant.seq}: granted index {grant.first_index}, its table ends at {len(sequence.table)}"
        )
    sequence.table += grant.blocks
    if grant.HasField("cached_tokens"):
        sequence.computed = grant.cached_tokens
        sequence.hit_blocks = grant.hit_blocks
    if not resumed:
        ends[grant.seq] = grant.granted_tokens
    elif not sequence.forked and len(sequence.tokens) - sequence.computed == 1:
        ends[grant.seq] = sequence.computed + 1  # it decodes at once; a prompt goes on with an advance


def _resume(scheduler: "Scheduler", sequence: Sequence) -> None:
    """A sequence gets its blocks back. The members of a group share some, so each advances before it writes."""
    _run(scheduler, sequence)
    del scheduler.parked[sequence.seq]
    sequence.host_table = None
    sequence.forked = sequence.group is not None


def _enter(scheduler: "Scheduler", sequence: Sequence, grant: steps_pb2.Grant) -> None:
    """A sequence gets its table."""
    _run(scheduler, sequence)
    sequence.refused = False
    sequence.committed = len(sequence.tokens)
    scheduler.statistics.see_admission(sequence, grant.cached_tokens)
    if sequence.timeline.first_step == 0.0:
        sequence.timeline.first_step = scheduler.clock()
        sequence.timeline.cached_tokens = grant.cached_tokens


def _run(scheduler: "Scheduler", sequence: Sequence) -> None:
    sequence.phase = Phase.RUNNING
    scheduler.running[sequence.seq] = sequence
    scheduler.queue.leave(sequence)


def _table_owner(scheduler: "Scheduler", seq: int) -> Sequence:
    sequence = scheduler.running.get(seq)
    if sequence is None:
        raise ContractError(f"grant for sequence {seq}, which holds no table")
    return sequence


def rows_of(scheduler: "Scheduler", ends: Mapping[int, int]) -> list[Row]:
    """What runs: all that was planned and granted, but for sequences that the step run since the plan has ended.

    Their next position was promised to nobody, since its id was never committed. A prompt chunk was: others may
    share its blocks already. It cannot be meant here, since aborts are taken before a plan, not after it.
    """
    rows = []
    for seq, end in ends.items():
        sequence = scheduler.running[seq]
        if sequence.phase is Phase.ENDED:
            continue
        if end > len(sequence.table) * scheduler.limits.block_size:
            raise ContractError(f"sequence {seq}: {end} tokens in a table of {len(sequence.table)} blocks")
        rows.append(Row(sequence, sequence.computed, end, samples=end == len(sequence.tokens)))
        sequence.computed = end
    _note(rows, scheduler)
    return rows


def _note(rows: list[Row], scheduler: "Scheduler") -> None:
    prefills = [row for row in rows if row.end - row.start > 1 or row.start < row.sequence.prompt_length]
    mixed = 0 < len(prefills) < len(rows)
    for row in rows:
        timeline = row.sequence.timeline
        timeline.steps += 1
        timeline.max_batch = max(timeline.max_batch, len(rows))
        timeline.mixed_steps += mixed
        timeline.prefill_chunks += row.start < row.sequence.prompt_length
        if timeline.history is not None:
            timeline.history.ran(scheduler.statistics.steps + 1, scheduler.step)
