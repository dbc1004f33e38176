"""The scheduler: a worker without a model. Its clock is moved by what each step costs.

Each step computes one token of every decoding sequence and, with what is left of the token budget, parts of prompts,
first come first served. Who must ask the memory in which step is known ahead, so a step touches nobody else.
"""

import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cli.simulate.costs import Costs
from cli.simulate.jobs import Chunk, Grow, Job, Memory, Outcome, Plan
from cli.simulate.workload import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step may do.

    Attributes:
        budget: the most tokens computed in a step.
        max_jobs: the most requests that run together.
        width: sequences of each request: 1, or parallel samples, or beams.
    """

    budget: int = 2_048
    max_jobs: int = 1 << 20
    width: int = 1


class Step(NamedTuple):
    """A step that was run.

    Attributes:
        clock: seconds since the start, when it ended.
        seconds: how long it took.
        running: requests in the batch.
        queued: requests that wait.
        finished: requests that have ended by its begin.
        table_tokens: lengths of all sequences together.
        preempted: requests that lost their memory in it.
        new_tokens: computed by it.
    """

    clock: float
    seconds: float
    running: int
    queued: int
    finished: int
    table_tokens: int
    preempted: int
    new_tokens: int


class Scheduler:
    """Serves ``requests``, sorted by arrival, from ``memory``."""

    def __init__(self, memory: Memory, requests: Sequence[Request], costs: Costs, limits: Limits) -> None:
        self.memory = memory
        self.rejected = 0
        self._costs = costs
        self._limits = limits
        self._arriving = deque(Job.of(number, each, limits.width) for number, each in enumerate(requests, start=1))
        self._queue: deque[Job] = deque()
        self._prefilling: list[Job] = []
        self._due: defaultdict[int, list[Job]] = defaultdict(list)
        self._step = 0
        self._clock = 0.0
        self._running = 0
        self._finished = 0
        self._decoding = 0
        self._table_tokens = 0

    def run(self, observe: Callable[[Step], None]) -> None:
        """Serve all requests; each step is shown to ``observe``."""
        while self._arriving or self._queue or self._running:
            if not self._queue and not self._running:
                self._clock = max(self._clock, self._arriving[0].request.arrival)
            while self._arriving and self._arriving[0].request.arrival <= self._clock:
                self._queue.append(self._arriving.popleft())
            observe(self._run_step())

    def _run_step(self) -> Step:
        self._step += 1
        plan = self._plan()
        outcome = self.memory.serve(plan)
        for job in plan.released:
            self._leave(job, job.final)
            self._finished += 1
        self._take_back(outcome)
        computed = self._decode(plan, outcome) + self._prefill(plan, outcome)
        seconds = self._costs.seconds(computed, self._table_tokens)
        self._clock += seconds
        return Step(
            self._clock,
            seconds,
            self._running,
            len(self._queue),
            self._finished,
            self._table_tokens,
            len(outcome.preempted),
            computed,
        )

    def _plan(self) -> Plan:
        released: list[Job] = []
        growing: list[Grow] = []
        # One preempted and back since it was entered may be due for this step a second time.
        for job in dict.fromkeys(self._due.pop(self._step, ())):
            if job.event == self._step:
                length = job.length_before(self._step)
                if length == job.final:
                    released.append(job)
                else:
                    growing.append(Grow(job, length))
        budget = self._limits.budget - self._decoding + sum(job.counted for job in released)
        chunks: list[Chunk] = []
        for job in self._prefilling:
            if budget <= 0:
                break
            end = min(job.prefill, job.computed + budget)
            chunks.append(Chunk(job, end))
            budget -= end - job.computed
        room = self._limits.max_jobs - self._running + len(released)
        return Plan(self._step, released, growing, chunks, self._queue, max(0, budget), room)

    # --- what the memory answered

    def _leave(self, job: Job, length: int) -> None:
        """A job gives up its place in the batch, with ``length`` tokens per member."""
        self._running -= 1
        self._table_tokens -= job.counted * length
        if job.start:
            self._decoding -= job.counted
        else:
            self._prefilling.remove(job)
        job.event = 0

    def _take_back(self, outcome: Outcome) -> None:
        """Preempted jobs go back to the head of the queue, to compute again what they had and then go on.

        A group starts over: its members differ, and only its prompt is common to them.
        """
        for job in outcome.preempted:
            length = job.length_before(self._step)
            self._leave(job, length)
            if job.start and job.width == 1:
                job.prefill = length + 1
            elif job.start:
                job.prefill = job.request.prompt_tokens
            job.computed, job.start, job.again, job.counted = 0, 0, True, 1
        self._queue.extendleft(outcome.preempted)
        for job in outcome.rejected:
            self.rejected += 1
            if job in self._queue:
                self._queue.remove(job)
            else:
                self._leave(job, job.length_before(self._step))

    def _decode(self, plan: Plan, outcome: Outcome) -> int:
        """One token for everyone who decodes, but for those that the memory let wait. Returns the tokens computed."""
        waiting = 0
        for job, _ in plan.growing:
            if not job.event:
                continue  # preempted or rejected
            if job.counted != job.width:  # it has forked
                length = job.length_before(self._step)
                self._decoding += job.width - job.counted
                self._table_tokens += (job.width - job.counted) * length
                job.counted = job.width
            if job in outcome.stalled:
                waiting += job.counted
                job.start += 1
            self._schedule(job)
        tokens = self._decoding - waiting
        self._table_tokens += tokens
        return tokens

    def _prefill(self, plan: Plan, outcome: Outcome) -> int:
        computed = 0
        for job, end in plan.chunks:
            if job in self._prefilling and job not in outcome.stalled:
                computed += end - job.computed
                self._table_tokens += end - job.computed
                self._compute_to(job, end)
        for job, cached, end in outcome.admitted:
            self._queue.remove(job)
            self._running += 1
            bisect.insort(self._prefilling, job, key=lambda each: each.number)
            computed += end - cached
            self._table_tokens += end
            self._compute_to(job, end)
        return computed

    def _compute_to(self, job: Job, end: int) -> None:
        job.computed = end
        if end == job.prefill:
            self._prefilling.remove(job)
            job.start = self._step
            self._decoding += job.counted
            self._schedule(job)

    def _schedule(self, job: Job) -> None:
        """Find the next step in which a decoding job ends or must ask for memory."""
        begin = job.start + 1 - job.prefill  # the step in which it writes token t is t + begin - 1
        event = min(job.final, self.memory.asks_at(job) - 1) + begin
        job.event = max(self._step + 1, event)
        self._due[job.event].append(job)
