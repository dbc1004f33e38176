"""Booking the manager's answer: who got which blocks, who waits, and so what the step runs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from model_worker.engine.batch import Batch, ContractError, Ended, Row
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
    ended = [one for rejected in response.rejected for one in _reject(scheduler, rejected)]
    _apply_preemptions(scheduler, response)
    ends = dict(scheduler.planned)
    for refused in response.waiting:
        _apply_refusal(scheduler, refused, ends)
    for row, seq in enumerate(response.replaced.seqs):
        _table_owner(scheduler, seq).table[response.replaced.indexes[row]] = response.replaced.blocks[row]
    for grant in response.grants:
        _apply_grant(scheduler, grant, ends)
    if scheduler.admitting:
        raise ContractError(f"no answer for the admits of {sorted(scheduler.admitting)}")
    copies = list(zip(response.copies.sources, response.copies.destinations, strict=True))
    return Batch(scheduler.step, rows_of(scheduler, ends), copies), ended


def _forget(scheduler: "Scheduler", seq: int) -> Sequence:
    """Take out of the books what the manager has released by itself."""
    scheduler.planned.pop(seq, None)
    sequence = scheduler.running.pop(seq, None)
    if sequence is None:
        raise ContractError(f"sequence {seq} holds no table")
    if sequence in scheduler.due:
        scheduler.due.remove(sequence)
    return sequence


def _reject(scheduler: "Scheduler", rejected: steps_pb2.Rejected) -> list[Ended]:
    sequence = scheduler.admitting.pop(rejected.seq, None) or _forget(scheduler, rejected.seq)
    if sequence.phase is Phase.ENDED:
        return []
    scheduler.end(sequence, EndReason.REJECTED)
    return [Ended(sequence, f"needs {rejected.needed} blocks, the pool has {rejected.available}")]


def _apply_preemptions(scheduler: "Scheduler", response: steps_pb2.StepResponse) -> None:
    for victim in response.preempted:
        if victim.mode != steps_pb2.PREEMPTION_MODE_RECOMPUTE:
            raise ContractError(f"sequence {victim.seq} was swapped, but this pool has no host tier")
        sequence = _forget(scheduler, victim.seq)
        if sequence.phase is Phase.RUNNING:
            scheduler.statistics.preemptions += 1
            sequence.lose_table()
            scheduler.add(sequence)


def _apply_refusal(scheduler: "Scheduler", refused: steps_pb2.Waiting, ends: dict[int, int]) -> None:
    sequence = scheduler.admitting.pop(refused.seq, None)
    if sequence is None:  # a running sequence sits this step out
        ends.pop(refused.seq, None)
        return
    sequence.refused = True
    sequence.needed = refused.needed
    sequence.timeline.refusals += 1
    scheduler.delay(sequence)
    sequence.phase = Phase.WAITING
    scheduler.add(sequence)


def _apply_grant(scheduler: "Scheduler", grant: steps_pb2.Grant, ends: dict[int, int]) -> None:
    sequence = scheduler.admitting.pop(grant.seq, None)
    if sequence is not None:
        _enter(scheduler, sequence, grant)
    else:
        sequence = _table_owner(scheduler, grant.seq)
    if grant.first_index != len(sequence.table):
        raise ContractError(
            f"sequence {grant.seq}: granted index {grant.first_index}, its table ends at {len(sequence.table)}"
        )
    sequence.table += grant.blocks
    if grant.HasField("cached_tokens"):
        sequence.computed = grant.cached_tokens
        sequence.hit_blocks = grant.hit_blocks
    ends[grant.seq] = grant.granted_tokens


def _enter(scheduler: "Scheduler", sequence: Sequence, grant: steps_pb2.Grant) -> None:
    """A sequence gets its table."""
    sequence.phase = Phase.RUNNING
    sequence.refused = False
    sequence.committed = len(sequence.tokens)
    sequence.table = []
    scheduler.running[sequence.seq] = sequence
    scheduler.statistics.see_admission(sequence, grant.cached_tokens)
    if sequence.timeline.first_step == 0.0:
        sequence.timeline.first_step = scheduler.clock()
        sequence.timeline.cached_tokens = grant.cached_tokens


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
    _note(rows)
    return rows


def _note(rows: list[Row]) -> None:
    prefills = [row for row in rows if row.end - row.start > 1 or row.start < row.sequence.prompt_length]
    mixed = 0 < len(prefills) < len(rows)
    for row in rows:
        timeline = row.sequence.timeline
        timeline.steps += 1
        timeline.max_batch = max(timeline.max_batch, len(rows))
        timeline.mixed_steps += mixed
        timeline.prefill_chunks += row.start < row.sequence.prompt_length
