"""Paged memory: blocks granted by the real KV manager, asked as a model worker asks it."""

import itertools
import struct
from collections import Counter

from cli.failures import CliError
from cli.simulate.beams import Survivors
from cli.simulate.jobs import Grow, Job, Outcome, Plan, Usage
from cli.simulate.manager_port import AttachedPool
from octavo.kv.v1 import common_pb2, steps_pb2

COUNTED = (
    "admitted_sequences",
    "readmitted_sequences",
    "released_sequences",
    "rejected_sequences",
    "lookup_tokens",
    "hit_tokens",
    "readmitted_lookup_tokens",
    "readmitted_hit_tokens",
    "granted_blocks",
    "forks",
    "copied_blocks",
    "recompute_preemptions",
)
"""Fields of ``PoolTotals`` that the simulator counts for itself."""


class PagedMemory:
    """A pool of the manager's.

    Each sequence's token ids repeat one number of its own, so that nothing is found cached but what a preempted
    sequence left itself.

    Args:
        slots: of the whole memory; what is left over beside whole blocks is external waste.
        survivors: which beams live on after each token; None for parallel samples and single sequences.
    """

    def __init__(self, pool: AttachedPool, slots: int, survivors: Survivors | None = None) -> None:
        self.slots = slots
        self.counted: Counter[str] = Counter()
        self._pool = pool
        self._size = pool.block_size
        self._survivors = survivors
        self._stats = common_pb2.PoolStats(num_blocks=pool.num_blocks, free_blocks=pool.num_blocks)
        self._jobs: dict[int, Job] = {}
        self._next_id = 1
        self._table_blocks = 0
        self._internal = 0

    # --- a step

    def serve(self, plan: Plan) -> Outcome:
        """As ``Memory``."""
        request = self._pool.request()
        named = self._table_blocks
        for job in plan.released:
            self._release(request, job)
        freed = named - self._table_blocks
        for grow in plan.growing:
            self._grow(request, grow)
        for chunk in plan.chunks:
            request.advances.seqs.append(chunk.job.members[0])
            request.advances.num_tokens.append(chunk.end)
        asked = self._admit(request, plan, freed)
        response = self._pool.answer(request)
        self._stats = response.stats
        return self._read(response, plan, asked)

    def _release(self, request: steps_pb2.StepRequest, job: Job) -> None:
        self._commit(request, job, job.final)
        for seq in job.members:
            self._end(request, seq)
        self._count_table(job, 0)

    def _end(self, request: steps_pb2.StepRequest, seq: int) -> None:
        request.releases.add(seq=seq, reason=steps_pb2.RELEASE_REASON_FINISHED)
        del self._jobs[seq]
        self.counted["released_sequences"] += 1

    def _grow(self, request: steps_pb2.StepRequest, grow: Grow) -> None:
        """Ask for the slot of the next token where it needs a block or is the first since a fork."""
        job, length = grow
        if length % self._size == 0:
            self._commit(request, job, length)  # before the forks, as the manager serves them
        self._fork(request, job, length)
        outgrown = length >= job.blocks * self._size
        for seq in job.members if outgrown else [seq for seq in job.members if seq in job.unwritten]:
            request.advances.seqs.append(seq)
            request.advances.num_tokens.append(length + 1)

    def _fork(self, request: steps_pb2.StepRequest, job: Job, length: int) -> None:
        """Make the members of a job whose prompt is there, or replace the beams that end."""
        if len(job.members) < job.width:
            parents = [job.members[0]] * (job.width - 1)
            survivors = job.members
        elif self._survivors is not None:
            survivors, parents = self._survivors.choose(job.members)
            for seq in job.members:
                if seq not in survivors:
                    self._end(request, seq)
        else:
            return
        members = list(survivors)
        for parent, twins in Counter(parents).items():
            children = [self._new_id(job) for _ in range(twins)]
            request.forks.add(parent=parent, children=children, num_tokens=length)
            self.counted["forks"] += twins
            members += children
            job.unwritten.update((parent, *children))
        job.unwritten.intersection_update(members)
        self._count_table(job, job.blocks, members)

    def _commit(self, request: steps_pb2.StepRequest, job: Job, length: int) -> None:
        """Tell the ids of what is written, for whole blocks and at the end."""
        count = length - job.known
        if count > 0:
            for seq in job.members:
                request.commits.seqs.append(seq)
                request.commits.starts.append(job.known)
                request.commits.counts.append(count)
                request.commits.token_ids += _repeated(self._token(job, seq), count)
            job.known = length

    def _admit(self, request: steps_pb2.StepRequest, plan: Plan, freed: int) -> list[Job]:
        """Ask for as many of the queue as should fit, and if nothing runs for the first anyway."""
        room = self._stats.free_blocks + self._stats.cached_blocks - self._stats.watermark_blocks
        room += freed - len(request.advances.seqs)
        budget, asked = plan.budget, list[Job]()
        for job in itertools.islice(plan.queue, plan.max_admits):
            room -= -(-job.prefill // self._size)
            if budget <= 0 or (room < 0 and (asked or self._table_blocks)):
                break
            if not job.members:
                job.members = [self._new_id(job)]
            request.admits.add(
                seq=job.members[0],
                token_ids=self._ids(job),
                num_tokens=budget,
                arrival=job.number,
                again=job.again,
                beside_blocks=(job.width - 1) * -(-job.prefill // self._size) if job.again else 0,
            )
            asked.append(job)
            budget -= min(budget, job.prefill)
        return asked

    # --- its answer

    def _read(self, response: steps_pb2.StepResponse, plan: Plan, asked: list[Job]) -> Outcome:
        outcome = Outcome()
        self.counted["copied_blocks"] += len(response.copies.sources)
        self.counted["granted_blocks"] += len(response.copies.sources)
        for preempted in response.preempted:
            self.counted["recompute_preemptions"] += 1
            job = self._jobs.pop(preempted.seq)
            if job not in outcome.preempted:
                outcome.preempted.append(job)
                self._count_table(job, 0)
        for job in outcome.preempted:
            self._forget_members(job)
        for rejected in response.rejected:
            self.counted["rejected_sequences"] += 1
            job = self._jobs.pop(rejected.seq)
            if job not in outcome.rejected:
                outcome.rejected.append(job)
                self._count_table(job, 0)
        outcome.stalled = {self._jobs[waiting.seq] for waiting in response.waiting}.difference(asked)
        for grant in response.grants:
            job = self._jobs[grant.seq]
            job.unwritten.discard(grant.seq)
            if grant.HasField("cached_tokens"):
                self._count_admission(job, grant)
                outcome.admitted.append((job, grant.cached_tokens, grant.granted_tokens))
            self._count_table(job, max(job.blocks, grant.first_index + len(grant.blocks)))
            self.counted["granted_blocks"] += len(grant.blocks) - grant.hit_blocks
        return outcome

    def _forget_members(self, job: Job) -> None:
        """The first member comes back alone, under its id; the others are forked from it again."""
        del job.members[1:]
        job.unwritten.clear()
        self._jobs[job.members[0]] = job

    def _count_admission(self, job: Job, grant: steps_pb2.Grant) -> None:
        self.counted["admitted_sequences"] += 1
        kind = "readmitted_" if job.again else ""
        self.counted["readmitted_sequences"] += job.again
        self.counted[f"{kind}lookup_tokens"] += job.prefill
        self.counted[f"{kind}hit_tokens"] += grant.cached_tokens
        job.known = job.prefill

    def _count_table(self, job: Job, blocks: int, members: list[int] | None = None) -> None:
        """A job's members name so many blocks each from now on."""
        self._table_blocks -= job.blocks * len(job.members)
        self._internal -= self._never_filled(job)
        job.blocks = blocks
        if members is not None:
            job.members = members
        self._table_blocks += job.blocks * len(job.members)
        self._internal += self._never_filled(job)

    def _never_filled(self, job: Job) -> int:
        return len(job.members) * max(0, job.blocks * self._size - job.final)

    # --- what there is

    def asks_at(self, job: Job) -> int:
        """As ``Memory``: at a block's edge, at the first write after its prompt's fork, and beams at every token."""
        if len(job.members) < job.width or self._survivors is not None:
            return 0
        return job.blocks * self._size + 1

    def usage(self, table_tokens: int) -> Usage:
        """As ``Memory``. Only last blocks have gaps, and every member has written its own."""
        referenced = self._stats.referenced_blocks * self._size
        gaps = self._table_blocks * self._size - table_tokens
        return Usage(referenced - gaps, gaps - self._internal, self._internal, self.slots - referenced)

    def saved(self) -> tuple[int, int]:
        """As ``Memory``."""
        return self._table_blocks - self._stats.referenced_blocks, self._table_blocks

    def check(self) -> None:
        """Compare what was counted here with what the manager counted, and ask it to check its invariants.

        Raises:
            CliError: they differ.
        """
        summary = self._pool.summary()
        totals, stats = summary.totals, summary.stats
        theirs = {name: getattr(totals, name) for name in COUNTED}
        ours = {name: self.counted[name] for name in COUNTED}
        if theirs != ours or stats.referenced_blocks or self._table_blocks:
            raise CliError(
                f"the manager counted {theirs} and holds {stats.referenced_blocks} blocks; counted here: {ours}"
            )
        if violations := self._pool.violations():
            raise CliError(f"the manager's invariants do not hold: {'; '.join(violations)}")

    # --- ids

    def _new_id(self, job: Job) -> int:
        seq = self._next_id
        self._next_id += 1
        self._jobs[seq] = job
        return seq

    def _ids(self, job: Job) -> bytes:
        prompt, length = job.request.prompt_tokens, job.prefill
        own = self._token(job, job.members[0])
        return _repeated(job.number, min(prompt, length)) + _repeated(own, length - min(prompt, length))

    def _token(self, job: Job, seq: int) -> int:
        """What a member generates: its own, so that beams that differ have different digests."""
        return job.number if job.width == 1 else seq


def _repeated(token: int, count: int) -> bytes:
    return struct.pack("<I", token) * count
