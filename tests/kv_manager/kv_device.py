"""A device that knows what it holds: every slot remembers the whole prefix whose KV it is, so any wrong read is seen.

Steps run in order; within a step swaps out, swaps in, copies, writes, reads (rule 6). Swaps out may run on a stream of
their own and end steps later; a step is complete only when they have.
"""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

Tokens = tuple[int, ...]
Moves = list[tuple[int, int]]


class WrongRead(AssertionError):
    """A slot was read or written that the contract forbids."""


@dataclass
class Row:
    """What one sequence does in a step: computes positions ``start`` to ``end - 1``, writing none below ``floor``.

    ``tokens`` are the tokens at positions 0 to ``end - 1`` as the worker fed them, drafts included; ``correct`` is how
    many of them are right.
    """

    owner: int
    start: int
    end: int
    floor: int
    table: list[int]
    tokens: Tokens
    correct: int
    generations: list[int]
    truth: Tokens
    dropped: bool = False


@dataclass
class DeviceStep:
    number: int
    swaps_out: Moves
    swaps_in: Moves
    copies: Moves
    rows: list[Row]
    swaps_out_done: bool = False


@dataclass
class Device:
    """Blocks of slots, host blocks, and steps in flight.

    A slot is written twice only above what is committed (I4): by the same owner after a rejected draft, by another
    after a fork behind the parent's last write.
    """

    num_blocks: int
    block_size: int
    window: int | None
    rng: random.Random
    late_swaps: bool
    drafts: bool
    late_forks: bool
    completed: int = 0
    flight: deque[DeviceStep] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.slots: list[list[Tokens | None]] = [[None] * self.block_size for _ in range(self.num_blocks + 1)]
        self.host: dict[int, list[Tokens | None]] = {}
        self.generation: Counter[int] = Counter()
        self.pending: list[tuple[int, int, int]] = []
        self.writers: dict[tuple[int, int], tuple[int, int]] = {}

    def granted(self, blocks: Sequence[int]) -> None:
        """The manager has granted these blocks afresh."""
        self.generation.update(blocks)

    def flush(self) -> None:
        """All swaps out have ended."""
        for _, block, host in self.pending:
            self.host[host] = list(self.slots[block])
        self.pending.clear()

    def execute(self) -> DeviceStep:
        """Run the oldest step in flight."""
        step = self.flight.popleft()
        if self.pending and self.rng.random() < 0.4:
            self.flush()
        if {host for host, _ in step.swaps_in} & {host for _, _, host in self.pending}:
            raise WrongRead(f"step {step.number} swaps in before the swap-out has ended")
        if self.late_swaps:
            self.pending += [(step.number, block, host) for block, host in step.swaps_out]
        else:
            for block, host in step.swaps_out:
                self.host[host] = list(self.slots[block])
        for host, block in step.swaps_in:
            self.slots[block] = list(self.host[host])
        self._copy(step.copies)
        for row in step.rows:
            self._write(step, row)
        for row in step.rows:
            self._read(step, row)
        self.completed = min([step.number, *(number - 1 for number, _, _ in self.pending)])
        return step

    def fail(self) -> None:
        """Nothing of the steps in flight happens; device and copy streams are drained."""
        self.flush()
        if self.flight:
            self.completed = self.flight[-1].number
        self.flight.clear()

    def _copy(self, copies: Moves) -> None:
        sources, destinations = {source for source, _ in copies}, {destination for _, destination in copies}
        if sources & destinations:
            raise WrongRead(f"copies are chained: {copies}")
        before = {source: list(self.slots[source]) for source in sources}
        for source, destination in copies:
            self.slots[destination] = list(before[source])

    def _write(self, step: DeviceStep, row: Row) -> None:
        for position in range(max(row.start, row.floor), row.end):
            index, offset = divmod(position, self.block_size)
            block = row.table[index]
            if block == 0:
                raise WrongRead(
                    f"step {step.number}: sequence {row.owner} writes position {position} to the null block"
                )
            if any(block == source for _, source, _ in self.pending):
                raise WrongRead(f"step {step.number}: block {block} is written while a swap-out reads it")
            generation, owner = self.writers.get((block, offset), (-1, -1))
            mine = owner == row.owner
            if generation == row.generations[index] and not (self.drafts if mine else self.late_forks):
                raise WrongRead(f"I4: step {step.number}: slot {offset} of block {block} is written twice")
            self.writers[block, offset] = row.generations[index], row.owner
            self.slots[block][offset] = row.tokens[: position + 1]

    def _read(self, step: DeviceStep, row: Row) -> None:
        if row.dropped:
            return  # its output is thrown away
        first = max(0, row.start - self.window + 1) if self.window is not None else 0
        for position in range(first, row.correct):
            index, offset = divmod(position, self.block_size)
            held, wanted = self.slots[row.table[index]][offset], row.truth[: position + 1]
            null_write = position < row.floor and position >= row.start  # recomputed: its K and V never left the step
            if held != wanted and not (null_write and row.table[index] == 0):
                raise WrongRead(
                    f"step {step.number}: sequence {row.owner} reads position {position} of block {row.table[index]}: "
                    f"{held} instead of {wanted}"
                )
