"""The pure core of the worker: it plans steps and keeps the books. No torch, no sockets, no clock of its own.

One step at a time goes through it:

    plan()            what step k+1 shall do, as the request to the manager; sent while step k runs
    finish(batch k)   the tokens step k sampled
    launch(response)  what step k+1 may do, as a batch with block tables; go_on() when there was nothing to ask for

A plan is made before the tokens of step k are known: a decode grows by one position whatever its token is, and a
sequence that turns out to be finished is left out at the launch and released by the next request.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from model_worker.engine.answer import book, rows_of
from model_worker.engine.batch import Batch, Ended, Limits
from model_worker.engine.group import Group, members_of, places_of
from model_worker.engine.outcomes import aborted
from model_worker.engine.planning import build, says_something, take_back
from model_worker.engine.queue import WaitingQueue
from model_worker.engine.sequence import EndReason, Phase, Sequence
from model_worker.engine.statistics import Statistics
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2


@dataclass(slots=True)
class Scheduler:
    """Queue, running set and step counter of one pool.

    Attributes:
        limits: what one step may hold.
        statistics: counters it keeps up to date.
        clock: seconds; for the timelines and for ageing.
        reserve: admit only what fits to its limit beside all running ones, for a manager that cannot preempt.
        room_ahead: the manager lets sequences grow before they must.
        queue: who has no device blocks, best first.
        running: who has a table, by id; those that ended stay until their release is sent.
        parked: who has its blocks in the host tier, by id.
        planned: the length each running sequence shall have after the step asked for, by id.
        asking: whose admit or resume is in that request, by id.
        forking: who was forked in that request.
        due: ended with blocks, here or in the host tier; their release goes with the next request.
        withdrawn: ended ids that the manager remembers although they hold nothing.
        unsettled: a step is due with nothing to ask for: the epoch's first one, or the one that tells of the end of the
            last step that did something.
        news_step: the last step whose request said something.
        told_step: the last step that the manager was told has completed.
    """

    limits: Limits
    statistics: Statistics
    clock: Callable[[], float]
    pool: str = ""
    epoch: int = 0
    step: int = 0
    reserve: bool = True
    room_ahead: bool = False
    completed_step: int = 0
    last_seq: int = 0
    queue: WaitingQueue = field(init=False)
    running: dict[int, Sequence] = field(default_factory=dict)
    parked: dict[int, Sequence] = field(default_factory=dict)
    pool_stats: common_pb2.PoolStats = field(default_factory=common_pb2.PoolStats)
    planned: dict[int, int] = field(default_factory=dict)
    asking: dict[int, Sequence] = field(default_factory=dict)
    forking: list[Sequence] = field(default_factory=list)
    due: list[Sequence] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)
    unsettled: bool = False
    news_step: int = 0
    told_step: int = 0

    def __post_init__(self) -> None:
        self.queue = WaitingQueue(self.clock, self.limits.ageing_seconds)

    # --- the queue -------------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a new request by rank: a lone sequence, or the first of a group."""
        for member in members_of(sequence):
            member.phase = Phase.FOLLOWING
        sequence.phase = Phase.WAITING
        self.queue.add(sequence)

    def requeue(self, sequences: Collection[Sequence]) -> None:
        """Back to the queue, those that are not in it; a group goes there in one place."""
        for sequence in sequences:
            if sequence.phase is Phase.WAITING:
                continue
            if sequence.group is None:
                sequence.phase = Phase.WAITING
                self.queue.add(sequence)
            else:
                sequence.phase = Phase.FOLLOWING
        for sequence in sequences:
            if sequence.group is not None:
                self.choose_lead(sequence.group)

    def choose_lead(self, group: Group) -> None:
        """Let one of the followers stand in the queue for all of them, unless somebody they follow is left."""
        followers = group.followers
        if followers and all(one.phase is Phase.FOLLOWING for one in group.live):
            lead = next((one for one in followers if one.parked), followers[0])
            lead.phase = Phase.WAITING
            self.queue.add(lead)

    def abort(self, sequence: Sequence) -> list[Ended]:
        """End a request for its caller. Its blocks go with the next request. Nothing if it had ended.

        Called between ``launch`` and ``plan`` only, so that nobody is asking.
        """
        members = members_of(sequence)
        live = [one for one in members if one.phase is not Phase.ENDED]
        if not live:
            return []
        if any(one.generated > 0 for one in live):
            self.statistics.aborted_in_decode += 1
        elif any(one.phase is Phase.RUNNING for one in live):
            self.statistics.aborted_in_prefill += 1
        else:
            self.statistics.aborted_waiting += 1
        self.statistics.aborted_requests += 1
        for member in live:
            self.end(member, EndReason.ABORTED)
        return [Ended(sequence)] if sequence.group is None else aborted(sequence.group, live)

    # --- the manager comes and goes --------------------------------------------------------------------------------

    def attach(self, answer: attach_pb2.AttachResponse, reserve: bool, room_ahead: bool = False) -> None:
        """Begin an epoch: whoever the manager has not adopted goes back to the queue."""
        self.pool, self.epoch = answer.header.pool, answer.header.epoch
        self.step = self.completed_step = self.news_step = self.told_step = answer.header.step
        self.reserve, self.room_ahead = reserve, room_ahead
        self.pool_stats = answer.stats
        self.unsettled = True  # until a step is answered, the pool goes to whoever else attaches it
        self.withdrawn.clear()
        self.lose_tables(keep=set(answer.adopted))
        for sequence in self.queue:
            sequence.refused = False
            if not sequence.again:  # refused by an earlier manager: a new id cannot lie below one that this one knows
                sequence.seq = 0
        for sequence in [*self.running.values(), *self.parked.values()]:
            sequence.committed = len(sequence.tokens)

    def void_plan(self) -> None:
        """The manager is gone with a request unanswered: nothing it asked for has happened."""
        self.planned.clear()
        self.due.clear()
        asked, self.asking = list(self.asking.values()), {}
        for child in self.forking:
            del self.running[child.seq]
            child.table, child.computed, child.committed, child.forked = [], 0, 0, False
        self.requeue([*asked, *self.forking])
        self.forking.clear()
        for held in (self.running, self.parked):
            for sequence in [one for one in held.values() if one.phase is Phase.ENDED]:
                del held[sequence.seq]

    def lose_tables(self, keep: Collection[int] = ()) -> None:
        """What the device or the manager held is gone: all but ``keep`` start over from the tokens known so far."""
        self.void_plan()
        lost = [one for one in [*self.running.values(), *self.parked.values()] if one.seq not in keep]
        for sequence in lost:
            self.running.pop(sequence.seq, None)
            self.parked.pop(sequence.seq, None)
            sequence.lose_table()
            self.statistics.preemptions += 1
        self.requeue(lost)

    @property
    def busy(self) -> bool:
        """A step would do something now, or one is due that says something by itself (rule 11)."""
        return bool(self.running or self.due or self.withdrawn or self.unsettled or self.can_ask())

    # --- step k+1: the request -------------------------------------------------------------------------------------

    def plan(self) -> steps_pb2.StepRequest:
        """Plan the next step. The caller sends the request and hands the answer to ``launch``."""
        request = self.plan_unless_quiet(never=True)
        assert request is not None
        return request

    def plan_unless_quiet(self, never: bool = False) -> steps_pb2.StepRequest | None:
        """As ``plan``, but None when the manager need not be asked: the caller runs its step and calls ``go_on``.

        It need not when the request would say nothing that cannot wait, the manager has heard of the end of all that
        was ever said, and nobody waits for what others may have released meanwhile (rule 7).
        """
        self.queue.refresh()
        request = build(self)
        news = says_something(request)
        if not (never or news or self.queue or self.told_step < self.news_step):
            take_back(self, request)
            return None
        self.told_step = request.completed_step
        if news:
            self.news_step = request.step
        return request

    def go_on(self) -> Batch:
        """What was planned, on slots granted before. It counts as part of the last answered step, which so lasts on."""
        batch = Batch(self.step, rows_of(self, self.planned))
        if batch.rows:
            self.completed_step = min(self.completed_step, self.step - 1)
        self.unsettled = True
        return batch

    def launch(self, response: steps_pb2.StepResponse) -> tuple[Batch, list[Ended]]:
        """Book the manager's answer. Returns the batch to run and the sequences it ended.

        Raises:
            ContractError: the answer does not fit the books.
        """
        return book(self, response)

    def delay(self, sequence: Sequence) -> None:
        """Count a request that had to wait for room, once."""
        if not sequence.delayed:
            sequence.delayed = True
            self.statistics.delayed_requests += 1

    def can_ask(self) -> bool:
        """Whether the head of the queue is worth a request."""
        if not self.queue:
            return False
        head = self.queue.head
        return self._tables() + places_of(head) <= self.limits.max_sequences and self.has_room(head)

    def _tables(self) -> int:
        """Sequences that hold a table, or will without another look at the queue."""
        held = [*self.running.values(), *self.asking.values()]
        alone = sum(one.group is None and one.phase is not Phase.ENDED for one in held)
        groups = {id(one.group): one.group for one in held if one.group is not None}
        return alone + sum(group.places for group in groups.values())

    def has_room(self, sequence: Sequence) -> bool:
        """Whether the pool may take a sequence, as far as the worker can know."""
        held = [one for one in self.running.values() if one.phase is Phase.RUNNING] + list(self.asking.values())
        if not held:
            return True
        if not self.reserve:
            return self.pool_stats.free_blocks + self.pool_stats.cached_blocks >= sequence.needed
        reserved = sum(self.blocks(one.limit) for one in held) + self.limits.watermark_blocks
        return reserved + self.blocks(sequence.limit) <= self.limits.num_blocks

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.limits.block_size)

    # --- step k: the result ----------------------------------------------------------------------------------------

    def finish(self, batch: Batch, tokens: Mapping[int, int], completed_step: int | None = None) -> list[Ended]:
        """Book the tokens that a step sampled, by sequence id. Returns the sequences that ended with it.

        ``completed_step`` is the newest step whose swaps have ended too, where those run behind the steps.
        """
        self.completed_step = batch.step if completed_step is None else completed_step
        self.unsettled = self.unsettled or not batch.empty or self.completed_step < batch.step
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
            self.end(sequence, reason)
            self.statistics.finished_requests += sequence.group is None or not sequence.group.live
            ended.append(Ended(sequence))
        if batch.rows:
            self.statistics.see_step(batch, len(tokens))
        return ended

    def fail(self, batch: Batch, message: str) -> list[Ended]:
        """A step broke on the device: its sequences end, everybody else starts over on a fresh pool."""
        ended = []
        for row in batch.rows:
            for member in members_of(row.sequence):
                if member.phase is not Phase.ENDED:
                    self.end(member, EndReason.FAILED)
                    ended.append(Ended(member, message))
        self.lose_tables()
        return ended

    def end(self, sequence: Sequence, reason: EndReason) -> None:
        """A sequence is over; what the manager holds for it is released by the next request."""
        if sequence.phase is Phase.WAITING:
            self.queue.remove(sequence)
            if sequence.refused:  # the manager remembers the id until it comes again or is released
                self.withdrawn.append(sequence.seq)
        if sequence.seq in self.running or sequence.seq in self.parked:
            self.due.append(sequence)
        sequence.phase = Phase.ENDED
        sequence.end_reason = reason
        sequence.timeline.ended = self.clock()
        if sequence.group is not None:
            self.choose_lead(sequence.group)
