"""A small scheduler on a fake worker: it keeps asking until every request has reached its length."""

import random
from collections import Counter
from dataclasses import dataclass, field

from kv_fake_worker import FakeWorker, admit

from octavo.kv.v1 import steps_pb2


@dataclass(eq=False)
class Job:
    """A request: ``prompt`` tokens in, ``total`` tokens at its end, ``samples`` of them forked after the prompt.

    ``state`` is new, running, parked, victim, folded (a sample that waits to be forked again) or done.
    """

    seq: int
    prompt: int
    total: int
    samples: int = 1
    priority: int = 0
    lead: "Job | None" = None
    state: str = "new"
    length: int = 0
    known: int = 0
    committed: int = 0
    fresh: bool = False
    aborted: bool = False
    children: list["Job"] = field(default_factory=list)

    def tokens(self, count: int) -> list[int]:
        """Its first ``count`` ids; a sample shares its lead's prompt."""
        owner = self.lead or self
        shared = [owner.seq * 10_000 + at for at in range(min(count, self.prompt))]
        return shared + [self.seq * 10_000 + at for at in range(len(shared), count)]


class Scheduler:
    """Runs jobs to their end and counts what it took.

    Args:
        lag: how many steps completion is reported late.
    """

    def __init__(self, worker: FakeWorker, jobs: list[Job], lag: int = 0, abort: float = 0.0, seed: int = 0) -> None:
        self.worker, self.jobs, self.lag, self.abort = worker, list(jobs), lag, abort
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.finished: list[int] = []
        self.next_seq = max(job.seq for job in jobs) + 1

    def run(self, most_steps: int) -> None:
        """Step until everybody is done.

        Raises:
            AssertionError: that took more than ``most_steps`` steps.
        """
        while any(job.state != "done" for job in self.jobs):
            assert self.counts["steps"] < most_steps, f"unfinished: {[j for j in self.jobs if j.state != 'done']}"
            self.step()

    def step(self) -> steps_pb2.StepResponse:
        size = self.worker.spec.block_size
        items: dict[str, dict[int, object]] = {"commits": {}, "advances": {}, "resumes": {}}
        releases, forks = [], []
        for job in self.jobs:
            if job.state != "done" and self.rng.random() < self.abort:
                job.aborted = True
            if job.aborted and job.state in ("new", "victim", "folded"):
                job.state = "done"
            if job.state in ("running", "parked") and (job.aborted or job.length >= job.total):
                releases.append(job.seq)
                job.state = "done"
                if not job.aborted:
                    self.finished.append(job.seq)
            elif job.state == "running" and job.length // size > job.committed // size:
                items["commits"][job.seq] = (job.committed, job.tokens(job.length)[job.committed :])
                job.committed = job.length
        for job in list(self.jobs):
            if job.state == "running" and job.lead is None and job.length >= job.prompt:
                forks += self._fork(job)
        plan: dict[Job, int] = {}
        for job in self.jobs:
            if job.state == "running" and not self._waits_for_its_group(job):
                plan[job] = job.known if job.length < job.known else job.length + 1
                if -(-plan[job] // size) > len(self.worker.tables.get(job.seq, ())) or job.fresh:
                    items["advances"][job.seq] = plan[job]
            elif job.state == "parked":
                items["resumes"][job.seq] = max(1, job.length)
        asked = [job for job in self.jobs if job.state in ("new", "victim") and job.lead is None]
        completed = max(0, self.worker.step_number - self.lag)
        request = self.worker.request(
            **items, releases=releases, forks=forks, admits=[self._admit(job) for job in asked], completed=completed
        )
        response = self.worker.send(request)
        self._follow(response, plan)
        return response

    def _fork(self, job: Job) -> list[tuple[int, list[int], int]]:
        if len(job.children) < job.samples - 1:
            for _ in range(job.samples - 1):
                child = Job(self.next_seq, job.prompt, job.total, priority=job.priority, lead=job, state="folded")
                child.known = job.prompt
                self.next_seq += 1
                job.children.append(child)
                self.jobs.append(child)
        folded = [child for child in job.children if child.state == "folded"]
        for child in folded:
            child.state, child.fresh = "running", True
            child.length, child.committed = job.prompt, min(job.committed, job.prompt)
        job.fresh = job.fresh or bool(folded)
        return [(job.seq, [child.seq for child in folded], job.prompt)] if folded else []

    def _waits_for_its_group(self, job: Job) -> bool:
        lead = job.lead or job
        return lead.state != "done" and any(
            member.state != "running" for member in lead.children if member.state != "done"
        )

    def _admit(self, job: Job) -> steps_pb2.Admit:
        size, known = self.worker.spec.block_size, max(job.prompt, job.known)
        folded = [child for child in job.children if child.state in ("folded", "victim")]
        beside = sum(-(-(child.known + 1) // size) - job.prompt // size for child in folded)
        return admit(
            job.seq,
            job.tokens(known),
            priority=job.priority,
            again=job.state == "victim",
            beside_blocks=beside,
        )

    def _follow(self, response: steps_pb2.StepResponse, plan: dict[Job, int]) -> None:
        counts, by_seq = self.counts, {job.seq: job for job in self.jobs}
        counts["steps"] += 1
        counts["swapped blocks"] += len(response.swaps_out.sources)
        counts["needless victims"] += max(0, len(response.preempted) - len(plan))
        for item in response.preempted:
            counts["victims"] += 1
            job = by_seq[item.seq]
            plan.pop(job, None)
            if item.mode == steps_pb2.PREEMPTION_MODE_SWAP:
                job.state = "parked"
            else:
                self._lose(job)
        for item in response.rejected:
            by_seq[item.seq].state = "done"
            counts["rejected"] += 1
        for item in response.waiting:
            plan.pop(by_seq[item.seq], None)
        for grant in response.grants:
            job = by_seq[grant.seq]
            if job.state in ("new", "victim"):
                job.state, job.length = "running", grant.granted_tokens
                job.known = job.committed = max(job.prompt, job.known)
            elif job.state == "parked":
                job.state = "running"
        for job, length in plan.items():
            if job.state == "running":
                job.length, job.fresh = length, False
                job.known = max(job.known, length)
                counts["tokens"] += 1

    def _lose(self, job: Job) -> None:
        lead = job.lead or job
        job.state, job.length, job.committed = ("victim" if job is lead else "folded"), 0, 0
        if lead.state == "done":  # the one they were forked from has ended: they come back one by one
            job.state, job.lead, job.children = "victim", None, []
