"""The pure core of the worker: it plans steps and keeps the books. No torch, no sockets, no clock of its own.

One step at a time goes through it:

    plan()            what step k+1 shall do, as the request to the manager; sent while step k runs
    finish(batch k)   the tokens step k sampled
    launch(response)  what step k+1 may do, as a batch with block tables

A plan is made before the tokens of step k are known: a decode grows by one position whatever its token is, and a
sequence that turns out to be finished is left out at the launch and released by the next request.
"""

import array
import bisect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from model_worker.engine.sequence import EndReason, Phase, Sequence
from model_worker.engine.statistics import Statistics
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2

RELEASE_REASONS = {
    EndReason.STOP: steps_pb2.RELEASE_REASON_FINISHED,
    EndReason.LENGTH: steps_pb2.RELEASE_REASON_FINISHED,
    EndReason.ABORTED: steps_pb2.RELEASE_REASON_ABORTED,
    EndReason.REJECTED: steps_pb2.RELEASE_REASON_ABORTED,
    EndReason.FAILED: steps_pb2.RELEASE_REASON_FAILED,
}


class ContractError(RuntimeError):
    """The manager's answer does not fit the worker's books; nothing of it may be run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold.

    Attributes:
        num_blocks: the pool's blocks, the null block aside.
        block_size: tokens per block.
        max_batch_tokens: token budget of a step.
        max_chunk: most prompt tokens of one sequence in a step.
        max_sequences: most sequences with a table; at most the token budget, so that every decode fits a step.
        watermark_blocks: kept free by admissions while others run.
    """

    num_blocks: int
    block_size: int
    max_batch_tokens: int
    max_sequences: int
    max_chunk: int
    watermark_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Positions ``start <= p < end`` of one sequence in one step; ``samples`` when the last one yields a token."""

    sequence: Sequence
    start: int
    end: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step does: copies first, then all rows in one forward pass."""

    step: int
    rows: list[Row]
    copies: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended; ``message`` explains a rejection."""

    sequence: Sequence
    message: str = ""


@dataclass(slots=True)
class Scheduler:
    """Queue, running set and step counter of one pool.

    Attributes:
        limits: what one step may hold.
        statistics: counters it keeps up to date.
        clock: seconds; for the timelines only.
        reserve: admit only what fits to its limit beside all running ones, for a manager that cannot preempt.
    """

    limits: Limits
    statistics: Statistics
    clock: Callable[[], float]
    pool: str = ""
    epoch: int = 0
    step: int = 0
    reserve: bool = True
    completed_step: int = 0
    last_seq: int = 0
    waiting: list[Sequence] = field(default_factory=list)
    running: dict[int, Sequence] = field(default_factory=dict)
    pool_stats: common_pb2.PoolStats = field(default_factory=common_pb2.PoolStats)
    _planned: dict[int, int] = field(default_factory=dict)
    _admitting: dict[int, Sequence] = field(default_factory=dict)
    _due: list[Sequence] = field(default_factory=list)
    _withdrawn: list[int] = field(default_factory=list)
    _unsettled: bool = False

    # --- the queue -------------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence by rank."""
        bisect.insort(self.waiting, sequence, key=lambda one: one.rank)

    def abort(self, sequence: Sequence) -> bool:
        """End a sequence for its caller. Its blocks go with the next request. False if it had ended.

        Called between ``launch`` and ``plan`` only, so that no sequence is being admitted.
        """
        if sequence.phase is Phase.ENDED:
            return False
        if sequence.generated > 0:
            self.statistics.aborted_in_decode += 1
        elif sequence.phase is Phase.WAITING:
            self.statistics.aborted_waiting += 1
        else:
            self.statistics.aborted_in_prefill += 1
        self.statistics.aborted_requests += 1
        self._end(sequence, EndReason.ABORTED)
        return True

    # --- the manager comes and goes --------------------------------------------------------------------------------

    def attach(self, answer: attach_pb2.AttachResponse, reserve: bool) -> None:
        """Begin an epoch: whoever the manager has not adopted goes back to the queue."""
        self.pool, self.epoch = answer.header.pool, answer.header.epoch
        self.step = self.completed_step = answer.header.step
        self.reserve = reserve
        self.pool_stats = answer.stats
        self._unsettled = False
        self._withdrawn.clear()
        self.lose_tables(keep=set(answer.adopted))
        for sequence in self.waiting:
            sequence.refused = False
            if not sequence.again:  # refused by an earlier manager: a new id cannot lie below one that this one knows
                sequence.seq = 0
        for sequence in self.running.values():
            sequence.committed = len(sequence.tokens)

    def void_plan(self) -> None:
        """The manager is gone with a request unanswered: nothing it asked for has happened."""
        self._planned.clear()
        self._due.clear()
        for sequence in self._admitting.values():
            sequence.phase = Phase.WAITING
            self.add(sequence)
        self._admitting.clear()
        for sequence in [one for one in self.running.values() if one.phase is Phase.ENDED]:
            del self.running[sequence.seq]

    def snapshot(self) -> Iterator[attach_pb2.LiveSequence]:
        """The sequences a new manager may adopt; the device is drained, so ``computed`` counts only what is there."""
        for sequence in self.running.values():
            if sequence.phase is Phase.ENDED:
                continue  # its blocks are free for a manager that has never heard of it
            yield attach_pb2.LiveSequence(
                seq=sequence.seq,
                token_ids=pack_ids(sequence.tokens),
                computed_tokens=sequence.computed,
                granted_tokens=sequence.computed,
                hit_blocks=sequence.hit_blocks,
                table=sequence.table,
                priority=sequence.priority,
                arrival=sequence.arrival,
                root=_root_of(sequence),
            )

    def in_hand(self) -> Batch:
        """What can run without a manager: the slots granted so far. It counts as part of the last answered step."""
        budget = self.limits.max_batch_tokens
        ends = {}
        for sequence in sorted(self.running.values(), key=lambda one: one.rank):
            slots = len(sequence.table) * self.limits.block_size
            end = min(len(sequence.tokens), slots, sequence.computed + min(budget, self.limits.max_chunk))
            if sequence.phase is Phase.RUNNING and end > sequence.computed and not sequence.exhausted:
                ends[sequence.seq] = end
                budget -= end - sequence.computed
        return Batch(self.step, self._rows(ends), [])

    def lose_tables(self, keep: Collection[int] = ()) -> None:
        """What the device or the manager held is gone: all but ``keep`` start over from the tokens known so far."""
        self.void_plan()
        for sequence in [one for one in self.running.values() if one.seq not in keep]:
            del self.running[sequence.seq]
            sequence.lose_table()
            self.statistics.preemptions += 1
            self.add(sequence)

    @property
    def busy(self) -> bool:
        """A step would do something now, or the manager has not heard of the last one's end (rule 11)."""
        return bool(self.running or self._withdrawn or self._unsettled or self._can_admit())

    # --- step k+1: the request -------------------------------------------------------------------------------------

    def plan(self) -> steps_pb2.StepRequest:
        """Plan the next step. The caller sends the request and hands the answer to ``launch``."""
        request = steps_pb2.StepRequest(
            pool=self.pool, epoch=self.epoch, step=self.step + 1, completed_step=self.completed_step
        )
        self._unsettled = False
        self._commit(request, self.running.values())
        for sequence in self._due:
            request.releases.add(seq=sequence.seq, reason=RELEASE_REASONS[sequence.end_reason or EndReason.FAILED])
            del self.running[sequence.seq]
        self._due.clear()
        for seq in self._withdrawn:
            request.releases.add(seq=seq, reason=steps_pb2.RELEASE_REASON_ABORTED)
        self._withdrawn.clear()
        budget = self._plan_running(request, self.limits.max_batch_tokens)
        self._plan_admissions(request, budget)
        return request

    def _commit(self, request: steps_pb2.StepRequest, sequences: Iterable[Sequence]) -> None:
        """Tell ids once per full block, and all that were written when a sequence ends (rules 8 and 9)."""
        size = self.limits.block_size
        ids: list[int] = []
        for sequence in sequences:
            written = min(len(sequence.tokens), sequence.computed)
            if written // size > sequence.committed // size:
                request.commits.seqs.append(sequence.seq)
                request.commits.starts.append(sequence.committed)
                request.commits.counts.append(written - sequence.committed)
                ids += sequence.tokens[sequence.committed : written]
                sequence.committed = written
        request.commits.token_ids = pack_ids(ids)

    def _plan_running(self, request: steps_pb2.StepRequest, budget: int) -> int:
        """Decodes first, then prompt chunks, both by rank. Returns what is left of the budget."""
        self._planned.clear()
        active = sorted(self.running.values(), key=lambda one: one.rank)
        active = [one for one in active if one.phase is Phase.RUNNING and not one.exhausted]
        # One position to compute is a decode, or the last token of a prompt: either way it yields a token.
        for sequence in [one for one in active if len(one.tokens) - one.computed <= 1]:
            if budget == 0:
                break
            budget -= 1
            end = sequence.computed + 1
            self._planned[sequence.seq] = end
            if self._blocks(end) > len(sequence.table):
                self._advance(request, sequence, end)
        for sequence in [one for one in active if len(one.tokens) - one.computed > 1]:
            if budget == 0:
                break
            end = self._chunk_end(sequence.computed, len(sequence.tokens), budget)
            budget -= end - sequence.computed
            self._planned[sequence.seq] = end
            self._advance(request, sequence, end)
        return budget

    def _advance(self, request: steps_pb2.StepRequest, sequence: Sequence, end: int) -> None:
        request.advances.seqs.append(sequence.seq)
        request.advances.num_tokens.append(end)

    def _plan_admissions(self, request: steps_pb2.StepRequest, budget: int) -> None:
        """Admit from the head of the queue; nobody overtakes a head that has no room."""
        while self.waiting and budget > 0 and self._can_admit():
            sequence = self.waiting[0]
            chunk = self._chunk_end(0, len(sequence.tokens), budget)
            del self.waiting[0]
            if sequence.seq == 0:  # ids grow in the order of first admits, which is not that of arrivals
                self.last_seq += 1
                sequence.seq = self.last_seq
            sequence.phase = Phase.ADMITTING
            self._admitting[sequence.seq] = sequence
            budget -= chunk
            request.admits.add(
                seq=sequence.seq,
                token_ids=pack_ids(sequence.tokens),
                num_tokens=chunk,
                priority=sequence.priority,
                arrival=sequence.arrival,
                root=_root_of(sequence),
                again=sequence.again,
            )
        if self.waiting and budget > 0 and not self._has_room(self.waiting[0]):
            self._delay(self.waiting[0])

    def _delay(self, sequence: Sequence) -> None:
        if not sequence.delayed:
            sequence.delayed = True
            self.statistics.delayed_requests += 1

    def _can_admit(self) -> bool:
        """Whether the head of the queue is worth a request."""
        tables = len(self.running) - len(self._due) + len(self._admitting)
        return bool(self.waiting) and tables < self.limits.max_sequences and self._has_room(self.waiting[0])

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether the pool may take a sequence, as far as the worker can know."""
        held = [one for one in self.running.values() if one.phase is Phase.RUNNING] + list(self._admitting.values())
        if not held:
            return True
        if not self.reserve:
            return self.pool_stats.free_blocks + self.pool_stats.cached_blocks >= sequence.needed
        reserved = sum(self._blocks(one.limit) for one in held) + self.limits.watermark_blocks
        return reserved + self._blocks(sequence.limit) <= self.limits.num_blocks

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _chunk_end(self, start: int, length: int, budget: int) -> int:
        """The end of the next chunk: at a block edge where it can be, since only there late hits are found."""
        end = min(length, start + min(budget, self.limits.max_chunk))
        if end < length:
            aligned = end - end % self.limits.block_size
            end = aligned if aligned > start else end
        return end

    # --- step k+1: the answer --------------------------------------------------------------------------------------

    def launch(self, response: steps_pb2.StepResponse) -> tuple[Batch, list[Ended]]:
        """Book the manager's answer. Returns the batch to run and the sequences it ended.

        Raises:
            ContractError: the answer does not fit the books.
        """
        if response.header.step != self.step + 1:
            raise ContractError(f"answer to step {response.header.step}, expected {self.step + 1}")
        self.step += 1
        self.pool_stats = response.stats
        self.statistics.see_pool(response.stats)
        ended = [one for rejected in response.rejected for one in self._reject(rejected)]
        self._apply_preemptions(response)
        ends = dict(self._planned)
        for refused in response.waiting:
            self._apply_refusal(refused, ends)
        for row, seq in enumerate(response.replaced.seqs):
            self._table_owner(seq).table[response.replaced.indexes[row]] = response.replaced.blocks[row]
        for grant in response.grants:
            self._apply_grant(grant, ends)
        if self._admitting:
            raise ContractError(f"no answer for the admits of {sorted(self._admitting)}")
        copies = list(zip(response.copies.sources, response.copies.destinations, strict=True))
        return Batch(self.step, self._rows(ends), copies), ended

    def _forget(self, seq: int) -> Sequence:
        """Take out of the books what the manager has released by itself."""
        self._planned.pop(seq, None)
        sequence = self.running.pop(seq, None)
        if sequence is None:
            raise ContractError(f"sequence {seq} holds no table")
        if sequence in self._due:
            self._due.remove(sequence)
        return sequence

    def _reject(self, rejected: steps_pb2.Rejected) -> list[Ended]:
        sequence = self._admitting.pop(rejected.seq, None) or self._forget(rejected.seq)
        if sequence.phase is Phase.ENDED:
            return []
        self._end(sequence, EndReason.REJECTED)
        return [Ended(sequence, f"needs {rejected.needed} blocks, the pool has {rejected.available}")]

    def _apply_preemptions(self, response: steps_pb2.StepResponse) -> None:
        for victim in response.preempted:
            if victim.mode != steps_pb2.PREEMPTION_MODE_RECOMPUTE:
                raise ContractError(f"sequence {victim.seq} was swapped, but this pool has no host tier")
            sequence = self._forget(victim.seq)
            if sequence.phase is Phase.RUNNING:
                self.statistics.preemptions += 1
                sequence.lose_table()
                self.add(sequence)

    def _apply_refusal(self, refused: steps_pb2.Waiting, ends: dict[int, int]) -> None:
        sequence = self._admitting.pop(refused.seq, None)
        if sequence is None:  # a running sequence sits this step out
            ends.pop(refused.seq, None)
            return
        sequence.refused = True
        sequence.needed = refused.needed
        sequence.timeline.refusals += 1
        self._delay(sequence)
        sequence.phase = Phase.WAITING
        self.add(sequence)

    def _apply_grant(self, grant: steps_pb2.Grant, ends: dict[int, int]) -> None:
        sequence = self._admitting.pop(grant.seq, None)
        if sequence is not None:
            self._enter(sequence, grant)
        else:
            sequence = self._table_owner(grant.seq)
        if grant.first_index != len(sequence.table):
            raise ContractError(
                f"sequence {grant.seq}: granted index {grant.first_index}, its table ends at {len(sequence.table)}"
            )
        sequence.table += grant.blocks
        if grant.HasField("cached_tokens"):
            sequence.computed = grant.cached_tokens
            sequence.hit_blocks = grant.hit_blocks
        ends[grant.seq] = grant.granted_tokens

    def _enter(self, sequence: Sequence, grant: steps_pb2.Grant) -> None:
        """A sequence gets its table."""
        sequence.phase = Phase.RUNNING
        sequence.refused = False
        sequence.committed = len(sequence.tokens)
        sequence.table = []
        self.running[sequence.seq] = sequence
        self.statistics.see_admission(sequence, grant.cached_tokens)
        if sequence.timeline.first_step == 0.0:
            sequence.timeline.first_step = self.clock()
            sequence.timeline.cached_tokens = grant.cached_tokens

    def _table_owner(self, seq: int) -> Sequence:
        sequence = self.running.get(seq)
        if sequence is None:
            raise ContractError(f"grant for sequence {seq}, which holds no table")
        return sequence

    def _rows(self, ends: Mapping[int, int]) -> list[Row]:
        """What runs: all that was planned and granted, but for sequences that the step run since the plan has ended.

        Their next position was promised to nobody, since its id was never committed. A prompt chunk was: others may
        share its blocks already. It cannot be meant here, since aborts are taken before a plan, not after it.
        """
        rows = []
        for seq, end in ends.items():
            sequence = self.running[seq]
            if sequence.phase is Phase.ENDED:
                continue
            if end > len(sequence.table) * self.limits.block_size:
                raise ContractError(f"sequence {seq}: {end} tokens in a table of {len(sequence.table)} blocks")
            rows.append(Row(sequence, sequence.computed, end, samples=end == len(sequence.tokens)))
            sequence.computed = end
        self._note_rows(rows)
        return rows

    def _note_rows(self, rows: list[Row]) -> None:
        prefills = [row for row in rows if row.end - row.start > 1 or row.start < row.sequence.prompt_length]
        mixed = 0 < len(prefills) < len(rows)
        for row in rows:
            timeline = row.sequence.timeline
            timeline.steps += 1
            timeline.max_batch = max(timeline.max_batch, len(rows))
            timeline.mixed_steps += mixed
            timeline.prefill_chunks += row.start < row.sequence.prompt_length

    # --- step k: the result ----------------------------------------------------------------------------------------

    def finish(self, batch: Batch, tokens: Mapping[int, int]) -> list[Ended]:
        """Book the tokens that a step sampled, by sequence id. Returns the sequences that ended with it."""
        self.completed_step = batch.step
        self._unsettled = bool(batch.rows or batch.copies)
        ended = []
        for row in batch.rows:
            sequence = row.sequence
            token = tokens.get(sequence.seq)
            if token is None or sequence.phase is Phase.ENDED:
                continue
            if sequence.timeline.first_token == 0.0:
                sequence.timeline.first_token = self.clock()
            sequence.tokens.append(token)
            if token in sequence.stop.token_ids and sequence.generated >= sequence.stop.min_tokens:
                reason = EndReason.STOP
            elif len(sequence.tokens) >= sequence.limit:
                reason = EndReason.LENGTH
            else:
                continue
            self.statistics.finished_requests += 1
            self._end(sequence, reason)
            ended.append(Ended(sequence))
        if batch.rows:
            self.statistics.see_step(batch, len(tokens))
        return ended

    def fail(self, batch: Batch, message: str) -> list[Ended]:
        """A step broke on the device: its sequences end, everybody else starts over on a fresh pool."""
        ended = []
        for row in batch.rows:
            if row.sequence.phase is not Phase.ENDED:
                self._end(row.sequence, EndReason.FAILED)
                ended.append(Ended(row.sequence, message))
        self.lose_tables()
        return ended

    def _end(self, sequence: Sequence, reason: EndReason) -> None:
        if sequence.phase is Phase.RUNNING and sequence.seq in self.running:
            self._due.append(sequence)
        elif sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
            if sequence.refused:  # the manager remembers the id until it comes again or is released
                self._withdrawn.append(sequence.seq)
        sequence.phase = Phase.ENDED
        sequence.end_reason = reason
        sequence.timeline.ended = self.clock()


def _root_of(sequence: Sequence) -> common_pb2.PrefixRoot:
    return common_pb2.PrefixRoot(tenant=sequence.tenant, salt=sequence.salt, adapter=sequence.adapter)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as u32 little-endian, the wire's form."""
    packed = array.array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
