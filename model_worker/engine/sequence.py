"""One generation: its tokens, its block table and where it stands."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from model_worker.engine.history import History
from model_worker.sampling.params import SamplingParams, StopConditions
from model_worker.sampling.results import TokenLogprobs
from model_worker.sampling.state import RowState

if TYPE_CHECKING:
    from model_worker.engine.group import Group


class Phase(enum.Enum):
    """Where a sequence stands."""

    WAITING = enum.auto()
    """In the queue. The manager does not know it, or keeps its blocks in the host tier."""
    ASKING = enum.auto()
    """Its admit or its resume has been sent and not been answered."""
    RUNNING = enum.auto()
    """It holds a block table."""
    FOLLOWING = enum.auto()
    """A member of a group that goes where the group's lead goes: out of the host tier, or out of the lead by a fork."""
    ENDED = enum.auto()
    """Finished, aborted or rejected; if it held blocks, its release is due."""


class EndReason(enum.Enum):
    """Why a sequence ended."""

    STOP = enum.auto()
    LENGTH = enum.auto()
    ABORTED = enum.auto()
    REJECTED = enum.auto()
    FAILED = enum.auto()


@dataclass(slots=True)
class Timeline:
    """What a sequence went through; times in seconds of the monotonic clock, 0 for not yet."""

    arrived: float = 0.0
    first_step: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0
    cached_tokens: int = 0
    prefill_chunks: int = 0
    steps: int = 0
    max_batch: int = 0
    mixed_steps: int = 0
    refusals: int = 0
    recomputes: int = 0
    swaps: int = 0
    history: History | None = None
    """Filled in for a request that is traced."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation.

    Positions, all counted from the prompt's first token:

        0 ... hit_blocks * block_size ... computed ............ len(tokens) ..... limit
        | shared, never written | KV written by launched steps | known, to compute | never reached

    ``computed`` counts the launched step as done. ``computed == len(tokens)`` means that the launched step samples the
    next token.

    Attributes:
        request_id: the caller's name for it.
        tokens: known ids: the prompt and what was generated.
        prompt_length: how many of them are the prompt.
        limit: the most tokens it may have, prompt included.
        arrival: a counter, unique; smaller came earlier.
        seq: the id at the manager, 0 before its first admit.
        computed: tokens whose KV the launched steps write.
        committed: tokens whose ids the manager knows.
        table: block ids by logical index.
        host_table: host block ids by logical index while it is parked in the host tier, else None.
        hit_blocks: the write floor in blocks.
        forked: it shares the block it writes next since a fork, so it advances before it writes (rule 8).
        fork_tokens: the largest length at which it was forked, as parent or child.
        group: the samples it runs and gives way with, None when it is alone.
        cut_from: the beam that it is to be forked from, and at which length; None to be forked where all members part.
        level: its priority as it ages in the queue.
        told_priority: its priority at the manager, that of its last admit.
        queued_at: when it entered the queue, None outside; ``queued_seconds`` is what it spent there before.
        again: preempted or lost with its manager; it is admitted with all its tokens, ahead of new ones.
        refused: this manager had no room for it when it last asked.
        needed: free blocks to wait for before asking again.
        cumulative_logprob: of the generated tokens, as far as their log-probabilities were asked for.
        prompt_logprobs: entry i is of prompt token i + 1, as far as they were asked for and computed.
        sampler_state: what the sampler keeps of the tokens so far; made anew from them when it is None.
    """

    request_id: str
    tokens: list[int]
    prompt_length: int
    limit: int
    sampling: SamplingParams
    stop: StopConditions
    arrival: int
    priority: int = 0
    tenant: str = ""
    salt: str = ""
    adapter: str = ""
    seq: int = 0
    phase: Phase = Phase.WAITING
    end_reason: EndReason | None = None
    computed: int = 0
    committed: int = 0
    table: list[int] = field(default_factory=list)
    host_table: list[int] | None = None
    hit_blocks: int = 0
    forked: bool = False
    fork_tokens: int = 0
    group: "Group | None" = None
    cut_from: "tuple[Sequence, int] | None" = None
    level: int = 0
    told_priority: int = 0
    queued_at: float | None = None
    queued_seconds: float = 0.0
    again: bool = False
    refused: bool = False
    needed: int = 0
    delayed: bool = False
    timeline: Timeline = field(default_factory=Timeline)
    cumulative_logprob: float = 0.0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    sampler_state: RowState | None = None

    @property
    def queue_rank(self) -> tuple[int, bool, int]:
        """Order in the queue: aged priority, preempted first, arrival."""
        return (self.level, not self.again, self.arrival)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Order among those that run, as the manager ranks them: whoever is last gives way first."""
        return (self.told_priority, self.arrival, self.seq)

    @property
    def parked(self) -> bool:
        """Its blocks lie in the host tier."""
        return self.host_table is not None

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def exhausted(self) -> bool:
        """The launched step samples its last token: no further position needs computing."""
        return self.computed >= self.limit - 1

    def lose_table(self) -> None:
        """Its blocks are gone: everything is to be computed, or found in the cache, again."""
        self.again = True
        self.computed = self.committed = self.hit_blocks = self.needed = self.fork_tokens = 0
        self.table, self.host_table = [], None
        self.forked = False
        self.timeline.recomputes += 1
        if self.timeline.history is not None:
            self.timeline.history.preempted("recompute")

    def park(self, host_table: list[int]) -> None:
        """Its blocks lie in the host tier from now on; what was computed stays computed."""
        self.again = True
        self.needed = 0
        self.table, self.host_table = [], host_table
        self.timeline.swaps += 1
        if self.timeline.history is not None:
            self.timeline.history.preempted("swap")
