"""What a step holds, and what one step may hold."""

from dataclasses import dataclass, field

from model_worker.engine.sequence import Sequence


class ContractError(RuntimeError):
    """The manager's answer does not fit the worker's books; nothing of it may be run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold.

    Attributes:
        num_blocks: the pool's blocks, the null block aside.
        block_size: tokens per block.
        max_batch_tokens: token budget of a step.
        max_chunk: most prompt tokens of one sequence in a step.
        max_sequences: most sequences with a table; at most the token budget, so that every decode fits a step.
        watermark_blocks: kept free by admissions while others run.
        ageing_seconds: waiting this long in the queue counts as much as one step of priority.
        steps_ahead: for how many steps a decoding sequence asks room, where there is plenty (design 3.8).
    """

    num_blocks: int
    block_size: int
    max_batch_tokens: int
    max_sequences: int
    max_chunk: int
    watermark_blocks: int = 0
    ageing_seconds: float = 10.0
    steps_ahead: int = 32


@dataclass(frozen=True, slots=True)
class Row:
    """Positions ``start <= p < end`` of one sequence in one step; ``samples`` when the last one yields a token."""

    sequence: Sequence
    start: int
    end: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step does, in this order (rule 6): swaps out, swaps in, copies, all rows in one forward pass.

    Attributes:
        copies: (source, destination), blocks of the pool.
        swaps_out: (block, host block).
        swaps_in: (host block, block).
    """

    step: int
    rows: list[Row]
    copies: list[tuple[int, int]] = field(default_factory=list)
    swaps_out: list[tuple[int, int]] = field(default_factory=list)
    swaps_in: list[tuple[int, int]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Nothing to do on the device: the step completes at once (rule 11)."""
        return not (self.rows or self.copies or self.swaps_out or self.swaps_in)


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended; ``message`` explains a rejection."""

    sequence: Sequence
    message: str = ""
