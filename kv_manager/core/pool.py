"""One pool: its state, and the order in which a step is served (design 3.5, rule 3)."""

from dataclasses import dataclass, field

from kv_manager.core import admission, forks, growth
from kv_manager.core.block_pool import BlockPool
from kv_manager.core.errors import step_conflict, wrong_step
from kv_manager.core.prefix import TOKEN_BYTES
from kv_manager.core.sequence import Sequence
from kv_manager.core.validation import validate_step
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2


@dataclass(slots=True)
class StepWork:
    """A step being served.

    Attributes:
        stalled: somebody was preempted, refused or left waiting, so nobody is admitted or resumed any more.
        release_fence: the step that must complete before what this request frees may be granted; 0 for at once.
    """

    request: steps_pb2.StepRequest
    response: steps_pb2.StepResponse
    step: int
    release_fence: int = 0
    stalled: bool = False


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
    forks: int = 0
    copied_blocks: int = 0
    rejected_sequences: int = 0


@dataclass(slots=True, eq=False)
class Pool:
    """A pool's whole state. ``apply`` is a pure function of it and the request.

    Attributes:
        spec: what the worker attached.
        step: the last step answered.
        greatest_seq: the greatest sequence id seen; smaller ones are old unless they are in ``refused``.
        refused: ids answered ``waiting`` at their admission and not served since; they may be sent again.
        draining: nobody new is admitted any more.
    """

    manager_id: str
    spec: attach_pb2.PoolSpec
    epoch: int
    blocks: BlockPool
    block_size: int
    step: int
    sequences: dict[int, Sequence] = field(default_factory=dict)
    greatest_seq: int = 0
    refused: set[int] = field(default_factory=set)
    draining: bool = False
    totals: Totals = field(default_factory=Totals)
    _last_request: bytes | None = None
    _last_response: steps_pb2.StepResponse | None = None

    @classmethod
    def create(cls, manager_id: str, spec: attach_pb2.PoolSpec, epoch: int) -> "Pool":
        """An empty pool as ``spec`` describes it."""
        return cls(manager_id, spec, epoch, BlockPool(spec.num_blocks), spec.block_size, spec.step)

    @property
    def name(self) -> str:
        return self.spec.pool

    def header(self) -> common_pb2.ResponseHeader:
        """Who answers, and where in the pool's history."""
        return common_pb2.ResponseHeader(
            manager_id=self.manager_id, pool=self.spec.pool, epoch=self.epoch, step=self.step
        )

    def apply(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        """Serve one step.

        Raises:
            ServiceError: the step is out of turn or the request is invalid; nothing has changed.
        """
        data = request.SerializeToString()
        if request.step != self.step + 1:
            return self._replay(request.step, data)
        validate_step(self, request)
        self.step = step = request.step
        self.blocks.complete(request.completed_step)
        response = steps_pb2.StepResponse(header=self.header())
        work = StepWork(request, response, step)
        self._commit(work)
        forks.serve(self, work)
        self._release(work)
        growth.serve(self, work)
        admission.serve(self, work)
        self.fill_stats(response.stats)
        self._last_request, self._last_response = data, response
        return response

    def _replay(self, step: int, data: bytes) -> steps_pb2.StepResponse:
        if step != self.step or self._last_response is None:
            raise wrong_step(step, self.step + 1)
        if data != self._last_request:
            raise step_conflict(step)
        return self._last_response

    def _commit(self, work: StepWork) -> None:
        commits = work.request.commits
        token_ids, start = commits.token_ids, 0
        for seq, count in zip(commits.seqs, commits.counts, strict=True):
            end = start + count * TOKEN_BYTES
            sequence = self.sequences[seq]
            sequence.append_ids(token_ids[start:end])
            sequence.granted = max(sequence.granted, sequence.known)
            self.index_written(sequence, work.step)
            start = end

    def _release(self, work: StepWork) -> None:
        for release in work.request.releases:
            self.refused.discard(release.seq)
            sequence = self.sequences.pop(release.seq, None)
            if sequence is not None:
                self.totals.released_sequences += 1
                self.blocks.drop_table(sequence.table, work.release_fence)

    def index_written(self, sequence: Sequence, step: int) -> None:
        """Publish the digests of the blocks that granted steps fill with known ids."""
        full = min(sequence.granted, sequence.known) // self.block_size
        first = sequence.indexed
        if full <= first:
            return
        digests = sequence.chain_to(full, self.block_size)
        publish, table = self.blocks.publish, sequence.table
        for index in range(first, full):
            publish(table[index], digests[index], step)
        sequence.indexed = full

    def is_shared(self, block: int) -> bool:
        """Whether somebody else may rely on the block's slots, so that a write must go to a copy (design 3.3)."""
        return self.blocks.ref_count[block] > 1 or self.blocks.digest[block] is not None

    def fill_stats(self, stats: common_pb2.PoolStats) -> None:
        """Count blocks by state."""
        blocks = self.blocks
        stats.num_blocks = blocks.num_blocks
        stats.free_blocks = blocks.free_blocks
        stats.cached_blocks = blocks.cached_blocks
        stats.referenced_blocks = blocks.referenced_blocks
        stats.fenced_blocks = blocks.fenced_blocks
        stats.watermark_blocks = self.spec.watermark_blocks
        stats.running_sequences = len(self.sequences)
