"""A device that knows what it holds: every slot remembers the whole prefix whose KV it is, so a wrong read is seen."""

import hashlib
import math
from collections.abc import Iterable

from model_worker.engine.batch import Batch
from model_worker.engine.sequence import Sequence
from model_worker.sampling.results import Sampled, StepOutput, TokenLogprobs

VOCABULARY = 50


def next_token(tokens: list[int], index: int = 0) -> int:
    """The language model of these tests: a hash of the whole prefix and of the sample's index."""
    digest = hashlib.sha256(repr((index, tokens)).encode()).digest()
    return int.from_bytes(digest[:4], "little") % VOCABULARY


def lone_run(prompt: list[int], limit: int, stops: Iterable[int] = (), index: int = 0) -> list[int]:
    """All tokens of a generation that runs alone."""
    tokens = list(prompt)
    while len(tokens) < limit:
        tokens.append(next_token(tokens, index))
        if tokens[-1] in stops:
            break
    return tokens


def most_likely(tokens: list[int], count: int) -> list[tuple[int, float]]:
    """The language model as a distribution: the ``count`` most likely tokens with their log-probabilities."""
    weights = list(hashlib.sha512(repr(tokens).encode()).digest()[:VOCABULARY])
    total = sum(weight + 1 for weight in weights)
    ranked = sorted(
        ((token, math.log((weight + 1) / total)) for token, weight in enumerate(weights)), key=lambda x: -x[1]
    )
    return ranked[:count]


class DeviceMemory:
    """Slots of ``num_blocks`` blocks, the null block and the host blocks; runs batches like the engine.

    With ``late_swaps`` swaps out run on a stream of their own: they read their sources only when ``flush`` ends them,
    and until then whoever writes those is caught.
    """

    def __init__(self, num_blocks: int, block_size: int, late_swaps: bool = False) -> None:
        self.block_size = block_size
        self.slots: list[tuple[int, ...] | None] = [None] * (num_blocks + 1) * block_size
        self.host: dict[int, list[tuple[int, ...] | None]] = {}
        self.late_swaps = late_swaps
        self.pending: list[tuple[int, int, int]] = []

    def completed(self, step: int) -> int:
        """The newest step up to ``step`` whose swaps have ended."""
        return min([step, *(number - 1 for number, _, _ in self.pending)])

    def flush(self) -> None:
        """All swaps out end."""
        for _, block, host in self.pending:
            self.host[host] = self._block(block)
        self.pending.clear()

    def run(self, batch: Batch) -> StepOutput:
        size = self.block_size
        self._swap(batch)
        before = list(self.slots)
        for source, destination in batch.copies:
            self.slots[destination * size : (destination + 1) * size] = before[source * size : (source + 1) * size]
        unread = {block for _, block, _ in self.pending}
        for row in batch.rows:
            for position in range(max(row.start, row.sequence.hit_blocks * size), row.end):
                block = row.sequence.table[position // size]
                assert block != 0, "a write to the null block of a position that is kept"
                assert block not in unread, "a write to a block that a swap-out still reads"
                self.slots[block * size + position % size] = tuple(row.sequence.tokens[: position + 1])
        sampled = {}
        for row in batch.rows:
            for position in range(row.end):
                slot = row.sequence.table[position // size] * size + position % size
                expected = tuple(row.sequence.tokens[: position + 1])
                assert self.slots[slot] == expected, f"sequence {row.sequence.seq} reads a wrong slot at {position}"
            if row.samples:
                sampled[row.sequence.seq] = _sample(row.sequence)
        return StepOutput(sampled, {})

    def _swap(self, batch: Batch) -> None:
        self.pending += [(batch.step, block, host) for block, host in batch.swaps_out]
        if not self.late_swaps:
            self.flush()
        assert not {host for host, _ in batch.swaps_in} & {host for _, _, host in self.pending}
        for host, block in batch.swaps_in:
            self.slots[block * self.block_size : (block + 1) * self.block_size] = self.host[host]

    def _block(self, block: int) -> list[tuple[int, ...] | None]:
        return self.slots[block * self.block_size : (block + 1) * self.block_size]


def _sample(sequence: Sequence) -> Sampled:
    token, wanted = next_token(sequence.tokens, sequence.sampling.index), sequence.sampling.top_logprobs
    if wanted is None:
        return Sampled(token)
    ranked = most_likely(sequence.tokens, VOCABULARY)
    return Sampled(token, TokenLogprobs(token, dict(ranked)[token], tuple(ranked[:wanted])))
