"""The arithmetic: bytes per token, per block, per sequence and per pool, each with the sum it comes from.

The pool is what the worker allocates, `[num_blocks + 1, layers, 2, KV heads, block_size, head_dim]`: `num_blocks`
usable blocks and the null block, each holding `block_size` tokens of all layers.
"""

from dataclasses import dataclass

from cli.amounts import counted
from cli.estimate.shape import KV_BYTES, ModelShape
from cli.estimate.sizes import human


@dataclass(frozen=True, slots=True)
class Sizing:
    """What is to be estimated.

    Attributes:
        dtype: type of the pool's elements, a key of ``KV_BYTES``.
        block_size: tokens per block.
        context: tokens per sequence, prompt and answer together.
        concurrency: sequences of that length at once.
        memory: bytes for KV blocks, None when not told.
    """

    shape: ModelShape
    dtype: str
    block_size: int
    context: int
    concurrency: int
    memory: int | None = None

    @property
    def itemsize(self) -> int:
        return KV_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        return self.shape.token_bytes(self.itemsize)

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes

    @property
    def sequence_blocks(self) -> int:
        """Blocks of one sequence; the last one is seldom full."""
        return -(-self.context // self.block_size)

    @property
    def num_blocks(self) -> int:
        """Usable blocks for all sequences when none shares a block: the worker's ``--num-blocks``."""
        return self.concurrency * self.sequence_blocks

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool tensor with ``num_blocks`` usable blocks, the null block included."""
        return (self.num_blocks + 1) * self.block_bytes

    @property
    def fits(self) -> "Fits | None":
        """What ``memory`` holds; None when none was told."""
        return None if self.memory is None else Fits.of(self, self.memory)


@dataclass(frozen=True, slots=True)
class Fits:
    """What an amount of memory for KV blocks holds.

    Attributes:
        blocks: whole blocks, the null block among them.
        num_blocks: usable ones, as many as the worker makes of ``--kv-memory-gib``; 0 when it would not start.
        sequences: of the context asked for, at once.
        tokens: the longest one sequence could be, alone.
    """

    memory: int
    blocks: int
    num_blocks: int
    sequences: int
    tokens: int

    @classmethod
    def of(cls, sizing: Sizing, memory: int) -> "Fits":
        blocks = memory // sizing.block_bytes
        usable = max(0, blocks - 1)
        return cls(memory, blocks, usable, usable // sizing.sequence_blocks, usable * sizing.block_size)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the arithmetic. ``read`` says the value in a larger unit; empty for what is no memory."""

    what: str
    sum: str
    value: int
    unit: str
    read: str = ""


def steps(sizing: Sizing) -> list[Step]:
    """The arithmetic from one token to the whole pool, and from the memory to what it holds."""
    shape, item = sizing.shape, f"{counted(sizing.itemsize, 'byte')}"
    token, block = f"{sizing.token_bytes:,}", f"{sizing.block_bytes:,}"
    lines = [
        _bytes("a token", f"{counted(shape.num_layers, 'layer')} x {shape.layer_formula} x {item}", sizing.token_bytes),
        _bytes("a block", f"{counted(sizing.block_size, 'token')} x {token}", sizing.block_bytes),
        Step(
            "blocks of a sequence",
            f"ceil({sizing.context:,} tokens / {sizing.block_size})",
            sizing.sequence_blocks,
            "blocks",
        ),
        _bytes("a sequence", f"{sizing.sequence_blocks:,} x {block}", sizing.sequence_blocks * sizing.block_bytes),
        Step(
            "blocks of all",
            f"{counted(sizing.concurrency, 'sequence')} x {sizing.sequence_blocks:,}",
            sizing.num_blocks,
            "blocks",
        ),
        _bytes("the pool", f"({sizing.num_blocks:,} + 1 null block) x {block}", sizing.pool_bytes),
    ]
    if (fits := sizing.fits) is not None:
        lines += [
            Step(f"blocks in {human(fits.memory)}", f"{fits.memory:,} // {block}", fits.blocks, "blocks"),
            Step(
                "usable blocks",
                f"{fits.blocks:,} - 1 null block" if fits.blocks else "no room for the null block",
                fits.num_blocks,
                "blocks",
            ),
            Step(
                "sequences that fit",
                f"{fits.num_blocks:,} // {sizing.sequence_blocks:,}",
                fits.sequences,
                "sequences",
            ),
            Step(
                "longest sequence",
                f"{fits.num_blocks:,} x {counted(sizing.block_size, 'token')}",
                fits.tokens,
                "tokens",
            ),
        ]
    return lines


def _bytes(what: str, sum_: str, value: int) -> Step:
    return Step(what, sum_, value, "bytes", human(value))
