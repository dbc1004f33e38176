"""A pool of the real manager, small enough to draw, and a memory of words that does what the manager's answers order.

Every word is written into the slot that the block table names, copied and swapped as ordered, and after every step each
sequence is read back through its table. So what is drawn is what a device would hold.
"""

from dataclasses import dataclass, field

from cli.failures import CliError
from cli.tour.words import SCRIPTS
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, steps_pb2

POOL = "tour"
BLOCK_SIZE, NUM_BLOCKS, HOST_BLOCKS = 4, 8, 6
# A block as large as Llama-3.1-8B's at 16 tokens; it prices swaps.
BLOCK_BYTES = 2 * 2**20
# Tokens and bytes per second, as an accelerator might measure them: first a fast way to the host, later a slow one.
PREFILL = 4_000.0
FAST_COPY, SLOW_COPY = 20e9, 1e9

Words = list[str | None]


class TourError(CliError):
    """The pages do not hold what they should: the tour found a fault of the manager's, or of its own."""


@dataclass(slots=True)
class Speaker:
    """A sequence of the tour, as its worker knows it.

    Attributes:
        written: tokens whose place in the pool holds their word.
        committed: tokens whose ids the manager knows.
        floor: the first position it may write; before it lie shared blocks.
    """

    letter: str
    seq: int
    written: int = 0
    committed: int = 0
    floor: int = 0

    @property
    def words(self) -> tuple[str, ...]:
        return SCRIPTS[self.letter].words

    @property
    def prompt(self) -> int:
        return SCRIPTS[self.letter].prompt


@dataclass(slots=True)
class TourPool:
    """The pool and whoever lives in it.

    Attributes:
        step: the last step answered; every step completes before the next one is asked for.
        device, host: the words in every block.
    """

    manager: Manager = field(default_factory=Manager)
    epoch: int = 0
    step: int = 0
    speakers: dict[str, Speaker] = field(default_factory=dict)
    device: dict[int, Words] = field(default_factory=dict)
    host: dict[int, Words] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)

    def attach(self, rates: common_pb2.Rates) -> attach_pb2.AttachResponse:
        """Bring an empty pool."""
        spec = attach_pb2.PoolSpec(
            pool=POOL,
            worker_id="tour",
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            block_bytes=BLOCK_BYTES,
            host_blocks=HOST_BLOCKS,
            model_fingerprint="words",
            reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
            rates=rates,
        )
        response = self.manager.attach([attach_pb2.AttachRequest(pool=spec)])
        self.epoch = response.header.epoch
        return response

    # --- what a worker asks for

    def admit(self, request: steps_pb2.StepRequest, letter: str, *, again: bool = False) -> None:
        """A prompt comes, or a recompute victim with all its tokens."""
        seq = ord(letter) - ord("A") + 1
        speaker = self.speakers.setdefault(letter, Speaker(letter, seq))
        known = max(speaker.prompt, speaker.written)
        ids = self._token_ids(speaker.words[:known])
        speaker.written, speaker.committed = 0, known
        request.admits.add(seq=seq, token_ids=ids, num_tokens=known, arrival=seq, again=again)

    def fork(self, request: steps_pb2.StepRequest, parent: str, child: str) -> None:
        """A child that shares everything its parent has written."""
        origin, seq = self.speakers[parent], ord(child) - ord("A") + 1
        self.speakers[child] = Speaker(child, seq, origin.written, min(origin.committed, origin.written))
        request.forks.add(parent=origin.seq, children=[seq], num_tokens=origin.written)

    def advance(self, request: steps_pb2.StepRequest, letter: str, length: int) -> None:
        """Grow to ``length`` tokens; what fits the blocks at hand is written before, without a word to the manager."""
        speaker = self.speakers[letter]
        self._write(speaker, min(length - 1, len(self.table(letter)) * BLOCK_SIZE))
        if speaker.written // BLOCK_SIZE > speaker.committed // BLOCK_SIZE:  # once per full block (rule 8)
            count = speaker.written - speaker.committed
            request.commits.seqs.append(speaker.seq)
            request.commits.starts.append(speaker.committed)
            request.commits.counts.append(count)
            request.commits.token_ids += self._token_ids(speaker.words[speaker.committed : speaker.written])
            speaker.committed = speaker.written
        request.advances.seqs.append(speaker.seq)
        request.advances.num_tokens.append(length)

    def release(self, request: steps_pb2.StepRequest, letter: str) -> None:
        """It has ended, or gives up waiting."""
        request.releases.add(seq=self.speakers.pop(letter).seq, reason=steps_pb2.RELEASE_REASON_FINISHED)

    def resume(self, request: steps_pb2.StepRequest, letter: str) -> None:
        """Bring a parked sequence back."""
        request.resumes.add(seq=self.speakers[letter].seq, num_tokens=self.speakers[letter].written)

    def ask(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        """Send a step and run what it is answered with, in the order of rule 6.

        Raises:
            TourError: an invariant is broken, or a sequence reads other words than its own.
        """
        request.pool, request.epoch, request.step, request.completed_step = POOL, self.epoch, self.step + 1, self.step
        response = self.manager.step(request)
        self.step += 1
        for moves, source, destination in (
            (response.swaps_out, self.device, self.host),
            (response.swaps_in, self.host, self.device),
            (response.copies, self.device, self.device),
        ):
            moved = [list(source[block]) for block in moves.sources]
            destination.update(zip(moves.destinations, moved, strict=True))
        for grant in response.grants:
            speaker = self.speakers[self.letter(grant.seq)]
            for block in set(grant.blocks[grant.hit_blocks :]) - {*response.swaps_in.destinations}:
                self.device[block] = [None] * BLOCK_SIZE  # what lay there is nobody's any more
            if grant.HasField("hit_blocks"):
                speaker.floor, speaker.written = grant.hit_blocks * BLOCK_SIZE, grant.cached_tokens
            self._write(speaker, max(speaker.written, grant.granted_tokens))
        self._check()
        return response

    # --- what the manager says

    def letter(self, seq: int) -> str:
        return chr(ord("A") + seq - 1)

    def look(self) -> inspect_pb2.InspectPoolResponse:
        """The pool with its sequences."""
        return self.manager.inspect_pool(inspect_pb2.InspectPoolRequest(pool=POOL))

    def sequence(self, letter: str) -> inspect_pb2.InspectSequenceResponse:
        """One sequence with its table, in the pool or in the host tier."""
        request = inspect_pb2.InspectSequenceRequest(pool=POOL, seq=self.speakers[letter].seq)
        return self.manager.inspect_sequence(request)

    def table(self, letter: str) -> list[int]:
        """Physical blocks by logical index; empty for one that is parked."""
        return [entry.block for entry in self.sequence(letter).table]

    def blocks(self) -> list[inspect_pb2.BlockInfo]:
        """Every block but the null block."""
        request = inspect_pb2.InspectBlocksRequest(pool=POOL, first_block=1, count=NUM_BLOCKS)
        return list(self.manager.inspect_blocks(request).blocks)

    # --- the memory

    def _write(self, speaker: Speaker, length: int) -> None:
        table = self.table(speaker.letter)
        for position in range(speaker.written, length):
            if position >= speaker.floor:  # below lie shared blocks: what is computed there goes to the null block
                block = self.device.setdefault(table[position // BLOCK_SIZE], [None] * BLOCK_SIZE)
                block[position % BLOCK_SIZE] = speaker.words[position]
                block[position % BLOCK_SIZE + 1 :] = [None] * (BLOCK_SIZE - position % BLOCK_SIZE - 1)
        speaker.written = max(speaker.written, length)

    def _token_ids(self, words: tuple[str, ...]) -> bytes:
        ids = (self._ids.setdefault(word, len(self._ids)) for word in words)
        return b"".join(number.to_bytes(4, "little") for number in ids)

    def _check(self) -> None:
        """Every invariant of the manager's, and every sequence read back through its table."""
        verdict = self.manager.check_integrity(inspect_pb2.CheckIntegrityRequest(pool=POOL))
        if verdict.violations:
            raise TourError("; ".join(verdict.violations))
        for summary in self.look().sequences:
            speaker = self.speakers[self.letter(summary.seq)]
            answer = self.sequence(speaker.letter)
            parked = summary.state == inspect_pb2.SEQUENCE_STATE_SWAPPED
            memory = self.host if parked else self.device
            table = list(answer.host_table) if parked else [entry.block for entry in answer.table]
            read = [memory[table[at // BLOCK_SIZE]][at % BLOCK_SIZE] for at in range(speaker.written)]
            if read != list(speaker.words[: speaker.written]):
                raise TourError(f"{speaker.letter} reads {read} through its table {table}")
