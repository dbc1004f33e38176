"""A worker in small for the manager's benchmarks: sequences that decode, and what a worker says about it.

A decoding sequence is mentioned once per block: when it outgrows its table it sends an advance, and with it commits the
block it has just filled.

    tokens of a sequence   | prompt | generated .................... |
    mentioned at           |        | first edge | every block_size ...|
"""

import random
from collections import defaultdict
from dataclasses import dataclass

from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2

BLOCK_SIZE = 16


@dataclass(slots=True)
class Decoding:
    """One sequence.

    Attributes:
        admitted: the step that computed its prompt.
        known: the committed length.
        ends: the length at which it is replaced by a new prompt.
    """

    seq: int
    prompt: int
    admitted: int
    known: int
    ends: int

    def length(self, step: int) -> int:
        """Tokens after ``step``."""
        return self.prompt + step - self.admitted


class DecodeLoad:
    """Builds the requests of one pool whose sequences all decode in every step.

    Args:
        sequences: how many run.
        context: prompts hold this many tokens and 0 to 15 more, drawn uniformly, so that the edges spread.
        output: a sequence ends after this many tokens, the first ones after a uniform part of it; 0 for never.
        lockstep: all prompts are equally long, so that all cross an edge in the same step.

    Attributes:
        crossings: advances sent so far.
        admissions: prompts sent so far.
        first_free_seq: the id of the next prompt.
    """

    def __init__(
        self, pool: str, sequences: int, *, context: int = 512, output: int = 0, seed: int = 0, lockstep: bool = False
    ) -> None:
        self.pool = pool
        self.sequences = sequences
        self.context = context
        self.output = output
        self.lockstep = lockstep
        self.epoch = 0
        self.step = 0
        self.crossings = 0
        self.admissions = 0
        self._dice = random.Random(f"{pool}/{seed}")
        self._due: defaultdict[int, list[Decoding]] = defaultdict(list)
        self.first_free_seq = 1

    def spec(self, num_blocks: int) -> attach_pb2.PoolSpec:
        """The pool to attach."""
        return attach_pb2.PoolSpec(
            pool=self.pool,
            worker_id="load",
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
        )

    def blocks_needed(self, steps: int) -> int:
        """Blocks that suffice for ``steps`` steps."""
        longest = self.context + BLOCK_SIZE + (self.output or steps) + BLOCK_SIZE
        return self.sequences * (-(-longest // BLOCK_SIZE) + 1)

    def begin(self) -> steps_pb2.StepRequest:
        """The first step: every prompt is admitted and computed whole."""
        request = self._request()
        for _ in range(self.sequences):
            done = self._dice.randrange(self.output) if self.output else 0
            self._admit(request, self.output - done)
        return request

    def next_request(self) -> steps_pb2.StepRequest:
        """One more token for everybody: those at a block edge are mentioned, and those at their end replaced."""
        request = self._request()
        due = self._due.pop(self.step, None)
        if due:
            commits, advances, step = request.commits, request.advances, self.step
            for each in due:
                length = each.length(step)
                if length - 1 > each.known:
                    commits.seqs.append(each.seq)
                    commits.starts.append(each.known)
                    commits.counts.append(length - 1 - each.known)
                    commits.token_ids += self._dice.randbytes(4 * (length - 1 - each.known))
                    each.known = length - 1
                if length > each.ends:
                    request.releases.add(seq=each.seq, reason=steps_pb2.RELEASE_REASON_FINISHED)
                    self._admit(request, self.output)
                    continue
                advances.seqs.append(each.seq)
                advances.num_tokens.append(length)
                self.crossings += 1
                self._due[step + BLOCK_SIZE].append(each)
        return request

    def heard(self, response: steps_pb2.StepResponse) -> None:
        """The answer to a request: everybody is served, or the pool is too small for the load."""
        assert not response.waiting, response.waiting

    def _request(self) -> steps_pb2.StepRequest:
        self.step += 1
        return steps_pb2.StepRequest(
            pool=self.pool, epoch=self.epoch, step=self.step, completed_step=max(0, self.step - 2)
        )

    def _admit(self, request: steps_pb2.StepRequest, output: int) -> None:
        length = self.context + (0 if self.lockstep else self._dice.randrange(BLOCK_SIZE))
        sequence = Decoding(self.first_free_seq, length, self.step, length, length + output if self.output else 1 << 62)
        self.first_free_seq += 1
        self.admissions += 1
        request.admits.add(
            seq=sequence.seq, token_ids=self._dice.randbytes(4 * length), num_tokens=length, arrival=sequence.seq
        )
        edge = -(-length // BLOCK_SIZE) * BLOCK_SIZE + 1
        self._due[self.step + edge - length].append(sequence)
