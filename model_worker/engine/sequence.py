"""One generation: its tokens, its block table and where it stands."""

import enum
from dataclasses import dataclass, field

from model_worker.sampling.params import SamplingParams, StopConditions


class Phase(enum.Enum):
    """Where a sequence stands."""

    WAITING = enum.auto()
    """In the queue; the manager does not know it."""
    ADMITTING = enum.auto()
    """Its admit has been sent and not been answered."""
    RUNNING = enum.auto()
    """It holds a block table."""
    ENDED = enum.auto()
    """Finished, aborted or rejected; if it held a table, its release is due."""


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
        hit_blocks: the write floor in blocks.
        again: preempted or lost with its manager; it is admitted with all its tokens, ahead of new ones.
        refused: this manager had no room for it when it last asked.
        needed: free blocks to wait for before asking again.
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
    hit_blocks: int = 0
    again: bool = False
    refused: bool = False
    needed: int = 0
    delayed: bool = False
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def rank(self) -> tuple[int, bool, int]:
        """Order in the queue: priority, preempted first, arrival."""
        return (self.priority, not self.again, self.arrival)

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def exhausted(self) -> bool:
        """The launched step samples its last token: no further position needs computing."""
        return self.computed >= self.limit - 1

    def lose_table(self) -> None:
        """Back to the queue: everything is to be computed, or found in the cache, again."""
        self.phase = Phase.WAITING
        self.again = True
        self.computed = self.committed = self.hit_blocks = self.needed = 0
        self.table = []
        self.timeline.recomputes += 1
