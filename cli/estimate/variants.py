"""What would be different: other block sizes, other types, other kinds of attention, and windows made use of."""

from dataclasses import dataclass, replace

from cli.estimate.shape import KV_BYTES
from cli.estimate.sums import Sizing

BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
"""Kernels take 1 to 256."""


def by_block_size(sizing: Sizing) -> list[Sizing]:
    """The same for other block sizes, the one asked for among them, in order."""
    return [replace(sizing, block_size=size) for size in sorted({*BLOCK_SIZES, sizing.block_size})]


def mean_waste(sizing: Sizing) -> float:
    """Tokens of the last block that stay empty, on average over all lengths: 0 to block_size - 1 are equally likely."""
    return (sizing.block_size - 1) / 2


def by_dtype(sizing: Sizing) -> list[Sizing]:
    """The same for every type the kernels take."""
    return [replace(sizing, dtype=dtype) for dtype in KV_BYTES]


def scale_bytes(sizing: Sizing) -> int:
    """Bytes of the scales beside an fp8 pool: float32 `[2, KV heads]` per layer."""
    return sizing.shape.num_layers * 2 * sizing.shape.num_kv_heads * 4


@dataclass(frozen=True, slots=True)
class Attention:
    """What another kind of attention would keep, all other sizes being equal.

    Attributes:
        layer_elements: elements per token and layer.
        token_bytes: of all layers.
        own: it is the model's own kind.
    """

    kind: str
    sum: str
    layer_elements: int
    token_bytes: int
    own: bool = False


def by_attention(sizing: Sizing) -> list[Attention]:
    """MHA, GQA, MQA and MLA side by side; empty when the heads of a latent model were not told.

    MLA for a model that has none is counted as in DeepSeek-V2 (arXiv 2405.04434, table 1): a latent of 4 head dims and
    a rotated key of half a head dim.
    """
    shape, dim = sizing.shape, sizing.shape.head_dim
    latent = shape.latent
    if latent is not None and latent.head_elements is None:
        return []
    per_head = 2 * dim if latent is None or latent.head_elements is None else latent.head_elements
    keeps = f"2 x {dim}" if latent is None else f"{per_head} (K, V)"
    groups = shape.num_kv_heads if shape.kind == "GQA" else 8 if shape.num_heads > 8 and shape.num_heads % 8 == 0 else 0
    kinds = [("MHA", f"{shape.num_heads} heads x {keeps}", shape.num_heads * per_head)]
    if groups:
        kinds.append(("GQA", f"{groups} KV heads x {keeps}", groups * per_head))
    kinds.append(("MQA", f"1 KV head x {keeps}", per_head))
    if latent is None:
        kinds.append(("MLA", f"4 x {dim} + {dim} / 2", 4 * dim + dim // 2))
    else:
        kinds.append(("MLA", f"{latent.rank} + {latent.rope_dim}", shape.layer_elements))
    return [
        Attention(kind, said, elements, shape.num_layers * elements * sizing.itemsize, own=kind == shape.kind)
        for kind, said, elements in kinds
    ]


@dataclass(frozen=True, slots=True)
class Windows:
    """What windows would save if blocks behind them were given back, for a sequence of the whole context.

    Attributes:
        layers: how many layers have a window.
        window: the widest.
        allocated: bytes that our pool allocates: one table for all layers, full.
        needed: bytes that some later query can still reach, in whole blocks of single layers.
        everywhere: no layer sees the whole context.
    """

    layers: int
    window: int
    allocated: int
    needed: int
    everywhere: bool

    @property
    def saved(self) -> float:
        """Share of what is allocated."""
        return 1 - self.needed / self.allocated


def windows(sizing: Sizing) -> Windows | None:
    """None for a model whose layers all see everything."""
    shape = sizing.shape
    widths = [width for width in shape.windows if width is not None]
    if not widths:
        return None
    layer_block = sizing.block_bytes // shape.num_layers
    blocks = sum(sizing.sequence_blocks if width is None else blocks_seen(sizing, width) for width in shape.windows)
    return Windows(
        layers=len(widths),
        window=max(widths),
        allocated=sizing.sequence_blocks * sizing.block_bytes,
        needed=blocks * layer_block,
        everywhere=len(widths) == shape.num_layers,
    )


def blocks_seen(sizing: Sizing, window: int) -> int:
    """Blocks that hold the last ``window`` of the context's tokens."""
    last, first = sizing.context - 1, max(0, sizing.context - window)
    return last // sizing.block_size - first // sizing.block_size + 1
