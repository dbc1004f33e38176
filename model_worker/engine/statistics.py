"""Counters of the engine. Written by the engine thread alone; other threads read single values."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.kv.v1 import common_pb2

if TYPE_CHECKING:
    from model_worker.engine.batch import Batch
    from model_worker.engine.sequence import Sequence


@dataclass(slots=True)
class Statistics:
    """See ``GetStatsResponse`` for the meaning of each field."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0
    aborted_waiting: int = 0
    aborted_in_prefill: int = 0
    aborted_in_decode: int = 0
    delayed_requests: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    swaps: int = 0
    swap_failures: int = 0
    forks: int = 0
    reattaches: int = 0
    referenced_blocks: int = 0
    peak_referenced_blocks: int = 0
    cached_blocks: int = 0
    step_seconds: float = 0.0
    manager_wait_seconds: float = 0.0

    def see_pool(self, stats: common_pb2.PoolStats) -> None:
        self.referenced_blocks = stats.referenced_blocks
        self.cached_blocks = stats.cached_blocks
        self.peak_referenced_blocks = max(self.peak_referenced_blocks, stats.referenced_blocks)

    def see_admission(self, sequence: "Sequence", cached_tokens: int) -> None:
        """Count a first admission; a readmission finds its own blocks, which is no cache hit of anybody's."""
        if not sequence.again:
            self.prompt_tokens += len(sequence.tokens)
            self.cached_tokens += cached_tokens
            self.prefix_hits += cached_tokens > 0

    def see_step(self, batch: "Batch", sampled: int) -> None:
        self.steps += 1
        self.computed_tokens += sum(row.end - row.start for row in batch.rows)
        self.generated_tokens += sampled
