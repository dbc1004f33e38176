"""The pure core of the worker: it plans steps and keeps the books. No torch, no sockets, no clock of its own.

One step at a time goes through it:

    plan()            what step k+1 shall do, as the request to the manager; sent while step k runs
    finish(batch k)   the tokens step k sampled
    launch(response)  what step k+1 may do, as a batch with block tables

A plan is made before the tokens of step k are known: a decode grows by one position whatever its token is, and a
sequence that turns out to be finished is left out at the launch and released by the next request.
"""

import bisect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from model_worker.engine.answer import book
from model_worker.engine.batch import Batch, Ended, Limits
from model_worker.engine.sequence import EndReason, Phase, Sequence
from model_worker.engine.statistics import Statistics
from model_worker.engine.wire import pack_ids, root_of
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2

RELEASE_REASONS = {
    EndReason.STOP: steps_pb2.RELEASE_REASON_FINISHED,
    EndReason.LENGTH: steps_pb2.RELEASE_REASON_FINISHED,
    EndReason.ABORTED: steps_pb2.RELEASE_REASON_ABORTED,
    EndReason.REJECTED: steps_pb2.RELEASE_REASON_ABORTED,
    EndReason.FAILED: steps_pb2.RELEASE_REASON_FAILED,
}


@dataclass(slots=True)
class Scheduler:
    """Queue, running set and step counter of one pool.

    Attributes:
        limits: what one step may hold.
        statistics: counters it keeps up to date.
        clock: seconds; for the timelines only.
        reserve: admit only what fits to its limit beside all running ones, for a manager that cannot preempt.
        planned: the length each running sequence shall have after the step asked for, by id.
        admitting: asked for in that step and not answered yet, by id.
        due: ended with a table; their release goes with the next request.
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
    planned: dict[int, int] = field(default_factory=dict)
    admitting: dict[int, Sequence] = field(default_factory=dict)
    due: list[Sequence] = field(default_factory=list)
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
        self.end(sequence, EndReason.ABORTED)
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
        self.planned.clear()
        self.due.clear()
        for sequence in self.admitting.values():
            sequence.phase = Phase.WAITING
            self.add(sequence)
        self.admitting.clear()
        for sequence in [one for one in self.running.values() if one.phase is Phase.ENDED]:
            del self.running[sequence.seq]

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
        for sequence in self.due:
            request.releases.add(seq=sequence.seq, reason=RELEASE_REASONS[sequence.end_reason or EndReason.FAILED])
            del self.running[sequence.seq]
        self.due.clear()
        for seq in self._withdrawn:
            request.releases.add(seq=seq, reason=steps_pb2.RELEASE_REASON_ABORTED)
        self._withdrawn.clear()
        budget = self._plan_running(request, self.limits.max_batch_tokens)
        self._plan_admissions(request, budget)
        return request

    def launch(self, response: steps_pb2.StepResponse) -> tuple[Batch, list[Ended]]:
        """Book the manager's answer. Returns the batch to run and the sequences it ended.

        Raises:
            ContractError: the answer does not fit the books.
        """
        return book(self, response)

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
        self.planned.clear()
        active = sorted(self.running.values(), key=lambda one: one.rank)
        active = [one for one in active if one.phase is Phase.RUNNING and not one.exhausted]
        # One position to compute is a decode, or the last token of a prompt: either way it yields a token.
        for sequence in [one for one in active if len(one.tokens) - one.computed <= 1]:
            if budget == 0:
                break
            budget -= 1
            end = sequence.computed + 1
            self.planned[sequence.seq] = end
            if self._blocks(end) > len(sequence.table):
                self._advance(request, sequence, end)
        for sequence in [one for one in active if len(one.tokens) - one.computed > 1]:
            if budget == 0:
                break
            end = self._chunk_end(sequence.computed, len(sequence.tokens), budget)
            budget -= end - sequence.computed
            self.planned[sequence.seq] = end
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
            self.admitting[sequence.seq] = sequence
            budget -= chunk
            request.admits.add(
                seq=sequence.seq,
                token_ids=pack_ids(sequence.tokens),
                num_tokens=chunk,
                priority=sequence.priority,
                arrival=sequence.arrival,
                root=root_of(sequence),
                again=sequence.again,
            )
        if self.waiting and budget > 0 and not self._has_room(self.waiting[0]):
            self.delay(self.waiting[0])

    def delay(self, sequence: Sequence) -> None:
        """Count a sequence that had to wait for room, once."""
        if not sequence.delayed:
            sequence.delayed = True
            self.statistics.delayed_requests += 1

    def _can_admit(self) -> bool:
        """Whether the head of the queue is worth a request."""
        tables = len(self.running) - len(self.due) + len(self.admitting)
        return bool(self.waiting) and tables < self.limits.max_sequences and self._has_room(self.waiting[0])

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether the pool may take a sequence, as far as the worker can know."""
        held = [one for one in self.running.values() if one.phase is Phase.RUNNING] + list(self.admitting.values())
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
            self.end(sequence, reason)
            ended.append(Ended(sequence))
        if batch.rows:
            self.statistics.see_step(batch, len(tokens))
        return ended

    def fail(self, batch: Batch, message: str) -> list[Ended]:
        """A step broke on the device: its sequences end, everybody else starts over on a fresh pool."""
        ended = []
        for row in batch.rows:
            if row.sequence.phase is not Phase.ENDED:
                self.end(row.sequence, EndReason.FAILED)
                ended.append(Ended(row.sequence, message))
        self.lose_tables()
        return ended

    def end(self, sequence: Sequence, reason: EndReason) -> None:
        """A sequence is over; what the manager holds for it is released by the next request."""
        if sequence.phase is Phase.RUNNING and sequence.seq in self.running:
            self.due.append(sequence)
        elif sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
            if sequence.refused:  # the manager remembers the id until it comes again or is released
                self._withdrawn.append(sequence.seq)
        sequence.phase = Phase.ENDED
        sequence.end_reason = reason
        sequence.timeline.ended = self.clock()
