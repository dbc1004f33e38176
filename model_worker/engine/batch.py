"""What a step holds, and what one step may hold."""

from dataclasses import dataclass

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
    """

    num_blocks: int
    block_size: int
    max_batch_tokens: int
    max_sequences: int
    max_chunk: int
    watermark_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Positions ``start <= p < end`` of one sequence in one step; ``samples`` when the last one yields a token."""

    sequence: Sequence
    start: int
    end: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step does: copies first, then all rows in one forward pass."""

    step: int
    rows: list[Row]
    copies: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended; ``message`` explains a rejection."""

    sequence: Sequence
    message: str = ""
