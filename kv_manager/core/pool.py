"""One pool: its state, and the order in which a step is served (design 3.5, rule 3)."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kv_manager.core import admission, forks, growth, room
from kv_manager.core.block_pool import BlockPool, Filled
from kv_manager.core.errors import step_conflict, wrong_step
from kv_manager.core.host_tier import HostTier
from kv_manager.core.journal import Journal
from kv_manager.core.prefix import TOKEN_BYTES
from kv_manager.core.quotas import Quota
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_notes import Before, note_step
from kv_manager.core.step_work import StepWork
from kv_manager.core.validation import validate_step
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2

REMEMBERED_PREEMPTIONS = 64


@dataclass(slots=True)
class Totals:
    """What the pool has done since Attach, in the words of ``PoolTotals``. Every number only grows."""

    admitted_sequences: int = 0
    readmitted_sequences: int = 0
    released_sequences: int = 0
    lookup_tokens: int = 0
    hit_tokens: int = 0
    readmitted_lookup_tokens: int = 0
    readmitted_hit_tokens: int = 0
    late_hit_tokens: int = 0
    forks: int = 0
    copied_blocks: int = 0
    recompute_preemptions: int = 0
    swap_preemptions: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    rejected_sequences: int = 0
    host_dropped_sequences: int = 0


@dataclass(slots=True, eq=False)
class Pool:
    """A pool's whole state. ``apply`` is a pure function of it and the request.

    Attributes:
        spec: what the worker attached.
        step: the last step answered.
        window: the attention window in tokens, None when a layer sees the whole prefix.
        quotas: the limits and use of the tenants that have limits.
        rates: the worker's measured speeds, None until it has told them.
        sequences: the live sequences, running or parked.
        groups: the same by group.
        greatest_seq: the greatest sequence id seen; smaller ones are old unless they are in ``refused``.
        adopted_up_to: the greatest id of the snapshot; smaller ones may be new to this manager.
        refused: ids answered ``waiting`` at their admission and not served since; they may be sent again.
        draining: nobody new is admitted any more.
        torn: a step began to change the state and did not come to its end.
        preemptions: how many sequences gave way, by mode and reason.
        recent_preemptions: the last ones with their steps, newest last.
    """

    manager_id: str
    spec: attach_pb2.PoolSpec
    epoch: int
    blocks: BlockPool
    host: HostTier
    block_size: int
    step: int
    rates: common_pb2.Rates | None
    ordered: bool
    window: int | None
    quotas: dict[str, Quota]
    sequences: dict[int, Sequence] = field(default_factory=dict)
    groups: dict[int, list[Sequence]] = field(default_factory=dict)
    greatest_seq: int = 0
    adopted_up_to: int = 0
    refused: set[int] = field(default_factory=set)
    draining: bool = False
    torn: bool = False
    totals: Totals = field(default_factory=Totals)
    preemptions: Counter[tuple[int, int]] = field(default_factory=Counter)
    recent_preemptions: deque[tuple[int, steps_pb2.Preempted]] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED_PREEMPTIONS)
    )
    _last_request: bytes | None = None
    _last_response: steps_pb2.StepResponse | None = None

    @classmethod
    def create(cls, manager_id: str, spec: attach_pb2.PoolSpec, epoch: int) -> "Pool":
        """An empty pool as ``spec`` describes it."""
        return cls(
            manager_id=manager_id,
            spec=spec,
            epoch=epoch,
            blocks=BlockPool(spec.num_blocks),
            host=HostTier(spec.host_blocks),
            block_size=spec.block_size,
            step=spec.step,
            rates=spec.rates if spec.HasField("rates") else None,
            ordered=spec.reuse_regime == common_pb2.REUSE_REGIME_ORDERED,
            window=spec.window if spec.HasField("window") else None,
            quotas={
                limit.tenant: Quota(limit.tenant, limit.soft_blocks, limit.hard_blocks) for limit in spec.tenant_limits
            },
        )

    @property
    def name(self) -> str:
        return self.spec.pool

    @property
    def journal(self) -> Journal | None:
        """What happens, for whoever watches; None until somebody does."""
        return self.blocks.journal

    def watch(self) -> Journal:
        """The journal, begun now if nobody has watched yet."""
        if self.blocks.journal is None:
            header = self.header()
            header.ClearField("step")
            self.blocks.journal = Journal(header)
        return self.blocks.journal

    def header(self) -> common_pb2.ResponseHeader:
        """Who answers, and where in the pool's history."""
        return common_pb2.ResponseHeader(
            manager_id=self.manager_id, pool=self.spec.pool, epoch=self.epoch, step=self.step
        )

    # --- a step

    def apply(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        """Serve one step.

        Raises:
            ServiceError: the step is out of turn or the request is invalid; nothing has changed.
        """
        data = request.SerializeToString()
        if request.step != self.step + 1:
            return self._replay(request.step, data)
        validate_step(self, request)
        before = Before.of(self) if self.journal is not None else None
        self.torn = True
        work = self._begin(request)
        if request.HasField("commits"):
            self._commit(work)
        if request.forks:
            forks.serve(self, work)
        if request.releases:
            self._release(work)
        if request.HasField("advances"):
            growth.serve(self, work)
        if request.admits or request.resumes:
            admission.serve(self, work)
        if request.HasField("advances"):
            room.serve(self, work)
        self.fill_stats(work.response.stats)
        if self.journal is not None and before is not None:
            note_step(self, self.journal, work, before)
        self._last_request, self._last_response = data, work.response
        self.torn = False
        return work.response

    def _replay(self, step: int, data: bytes) -> steps_pb2.StepResponse:
        if step != self.step or self._last_response is None:
            raise wrong_step(step, self.step + 1)
        if data != self._last_request:
            raise step_conflict(step)
        return self._last_response

    def _begin(self, request: steps_pb2.StepRequest) -> StepWork:
        self.step = step = request.step
        if request.HasField("failed_step"):
            self.blocks.withdraw(request.failed_step)
        self.blocks.complete(request.completed_step)
        self.host.complete(request.completed_step)
        if request.HasField("rates"):
            self.rates = request.rates
        own_stream = not self.ordered or self.spec.swaps_on_own_stream
        return StepWork(
            request,
            steps_pb2.StepResponse(header=self.header()),
            step,
            release_fence=0 if self.ordered else step - 1,
            swap_fence=step if own_stream else 0,
        )

    def _commit(self, work: StepWork) -> None:
        commits = work.request.commits
        token_ids, start = commits.token_ids, 0
        sequences, block_size = self.sequences, self.block_size
        filled: list[Filled] = []
        for seq, count in zip(commits.seqs[:], commits.counts[:], strict=True):
            end = start + count * TOKEN_BYTES
            sequence = sequences[seq]
            sequence.append_ids(token_ids[start:end])
            if sequence.known > sequence.granted:
                sequence.granted = sequence.known
            filled += sequence.newly_full(block_size)
            start = end
        self.blocks.publish(filled, work.step)

    def _release(self, work: StepWork) -> None:
        for release in work.request.releases:
            self.refused.discard(release.seq)
            sequence = self.sequences.get(release.seq)
            if sequence is not None:
                self.totals.released_sequences += 1
                self.discard(sequence, work)

    # --- sequences

    def add(self, sequence: Sequence) -> None:
        """A sequence begins to live."""
        self.sequences[sequence.id] = sequence
        self.groups.setdefault(sequence.group, []).append(sequence)
        self.greatest_seq = max(self.greatest_seq, sequence.id)
        self.refused.discard(sequence.id)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is forgotten; what it holds is the caller's to drop."""
        del self.sequences[sequence.id]
        members = self.groups[sequence.group]
        members.remove(sequence)
        if not members:
            del self.groups[sequence.group]
            self.host.parked.pop(sequence.group, None)

    def discard(self, sequence: Sequence, work: StepWork) -> None:
        """A sequence ends, running or parked, and gives back what it holds."""
        self.remove(sequence)
        if sequence.running:
            self.drop_table(sequence, work.release_fence)
        else:
            self.host.drop(sequence.parked_table, fence=work.step)

    def drop_table(self, sequence: Sequence, fence: int) -> None:
        """Give back a running sequence's device blocks."""
        if sequence.quota is not None:
            sequence.quota.unname(sequence.table)
        self.blocks.drop_table(sequence.table, fence)
        sequence.table = []

    def members(self, group: int) -> list[Sequence]:
        """The live sequences of a group, by id. They run or are parked together."""
        return sorted(self.groups.get(group, ()), key=lambda sequence: sequence.id)

    def running(self) -> Iterator[Sequence]:
        """The sequences that hold device blocks."""
        return (sequence for sequence in self.sequences.values() if sequence.table)

    @property
    def num_running(self) -> int:
        """How many sequences hold device blocks."""
        parked = sum(len(self.groups[group]) for group in self.host.parked)
        return len(self.sequences) - parked

    # --- blocks

    def index_written(self, sequence: Sequence, step: int) -> None:
        """Publish the digests of the blocks that granted steps fill with known ids."""
        self.blocks.publish(sequence.newly_full(self.block_size), step)

    def is_shared(self, block: int, leaving: int = 0) -> bool:
        """Whether somebody else relies on the block's slots, so that a write must go to a copy (design 3.3).

        Args:
            leaving: owners that will have left it by then.
        """
        blocks = self.blocks
        return blocks.ref_count[block] - leaving > 1 or blocks.digest[block] is not None or block in blocks.swap_sources

    def readmission_reserve(self) -> int:
        """Blocks that stay spare at a readmission: the watermark, one per running sequence, one for itself."""
        running = self.num_running
        return self.spec.watermark_blocks + running + 1 if running else 0

    def short_of(self, required: int) -> steps_pb2.WaitingReason:
        """Why ``required`` blocks are not available: steps in flight still use them, or sequences do."""
        blocks = self.blocks
        if required <= blocks.available + blocks.fenced_blocks:
            return steps_pb2.WAITING_REASON_FENCE
        return steps_pb2.WAITING_REASON_POOL

    def fill_stats(self, stats: common_pb2.PoolStats) -> None:
        """Count blocks by state."""
        blocks, running = self.blocks, self.num_running
        stats.num_blocks = blocks.num_blocks
        stats.free_blocks = blocks.free_blocks
        stats.cached_blocks = blocks.cached_blocks
        stats.referenced_blocks = blocks.referenced_blocks
        stats.fenced_blocks = blocks.fenced_blocks
        stats.watermark_blocks = self.spec.watermark_blocks
        stats.host_blocks = self.host.num_blocks
        stats.host_free_blocks = self.host.unparked_blocks
        stats.running_sequences = running
        stats.swapped_sequences = len(self.sequences) - running
