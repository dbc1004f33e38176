"""A device that knows what it holds: every slot remembers the whole prefix whose KV it is, so a wrong read is seen."""

import hashlib
from collections.abc import Iterable

from model_worker.engine.batch import Batch

VOCABULARY = 50


def next_token(tokens: list[int]) -> int:
    """The language model of these tests: a hash of the whole prefix."""
    digest = hashlib.sha256(repr(tokens).encode()).digest()
    return int.from_bytes(digest[:4], "little") % VOCABULARY


def lone_run(prompt: list[int], limit: int, stops: Iterable[int] = ()) -> list[int]:
    """All tokens of a generation that runs alone."""
    tokens = list(prompt)
    while len(tokens) < limit:
        tokens.append(next_token(tokens))
        if tokens[-1] in stops:
            break
    return tokens


class DeviceMemory:
    """Slots of ``num_blocks`` blocks and the null block; runs batches like the model runner."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[tuple[int, ...] | None] = [None] * (num_blocks + 1) * block_size

    def run(self, batch: Batch) -> dict[int, int]:
        size = self.block_size
        before = list(self.slots)
        for source, destination in batch.copies:
            self.slots[destination * size : (destination + 1) * size] = before[source * size : (source + 1) * size]
        for row in batch.rows:
            for position in range(max(row.start, row.sequence.hit_blocks * size), row.end):
                block = row.sequence.table[position // size]
                assert block != 0, "a write to the null block of a position that is kept"
                self.slots[block * size + position % size] = tuple(row.sequence.tokens[: position + 1])
        tokens = {}
        for row in batch.rows:
            for position in range(row.end):
                slot = row.sequence.table[position // size] * size + position % size
                expected = tuple(row.sequence.tokens[: position + 1])
                assert self.slots[slot] == expected, f"sequence {row.sequence.seq} reads a wrong slot at {position}"
            if row.samples:
                tokens[row.sequence.seq] = next_token(row.sequence.tokens)
        return tokens
