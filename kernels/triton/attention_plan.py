"""Which programs a step's attention runs: tiles of rows and splits of keys, the same in every layer of a step.

Sequences whose rows fit one small tile (decode, and a few draft tokens to verify) are short; the others are long.

    short    one item per sequence, keys split over programs until the device is full
    long     one item per ROWS rows, keys not split: there are programs enough
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.ragged import RaggedBatch
from kernels.staging import to_device
from kernels.triton.device import has_warp_group_products, multiprocessors
from kernels.triton.tiles import Tiles, long_tiles, power_of_two, short_tiles

PROGRAMS_PER_MULTIPROCESSOR = 4
"""Decode programs that a multiprocessor holds at once; fewer leave its memory pipe idle."""
LEAST_SPLIT_KEYS = 256
"""Below this, writing and combining a split's result costs as much as reading its keys."""
DETERMINISTIC_SPLIT_KEYS = 512
MOST_SPLITS = 128


@dataclass(frozen=True, slots=True)
class Heads:
    """Geometry of the attention: `group` query heads share each of `kv_heads` KV heads."""

    kv_heads: int
    group: int
    dim: int

    @property
    def dim_tile(self) -> int:
        """Triton's tiles are powers of two, and a matrix product's inner dimension is at least 16."""
        return max(16, power_of_two(self.dim))


@dataclass(frozen=True, slots=True)
class Work:
    """One launch: `num_items` tiles of rows, the keys of each in `num_splits` splits of `split_tiles` tiles or more."""

    tiles: Tiles
    items: torch.Tensor | None
    """int32 [num_items, 2] of (sequence, first row); None when item i is the whole of sequence i."""
    num_items: int
    num_splits: int
    split_tiles: int
    most_rows: int
    """Rows of the fullest item."""
    combined: bool
    """Whether splits leave their results in memory and are combined, rather than one split writing the output."""

    def split_results(self, heads: Heads, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for the splits' results, float32 [num_items, kv_heads, num_splits, rows, head_dim], and for their
        log-sum-exps, without the last dimension. It belongs to one launch: a plan may be in use on several streams.
        """
        rows = (self.num_items, heads.kv_heads, self.num_splits, self.tiles.rows)
        return torch.empty((*rows, heads.dim), device=device), torch.empty(rows, device=device)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    short: Work | None
    long: Work | None


def plan_attention(
    batch: RaggedBatch, heads: Heads, window: int | None, dtype: torch.dtype, kv_dtype: torch.dtype
) -> AttentionPlan:
    """The plan of this batch, made at the first layer that asks and kept in the batch.

    Nothing writes to it later. Streams other than the one it was made on must wait for that one first, as for the
    batch's own tensors.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    key = (plan_attention, heads, window, dtype, kv_dtype, deterministic)
    plan = batch.step_cache.get(key)
    if plan is None:
        short = short_tiles(heads.group, heads.dim_tile, dtype)
        long = long_tiles(heads.dim_tile, dtype, kv_dtype, has_warp_group_products(batch.block_tables.device))
        processors = None if deterministic else multiprocessors(batch.block_tables.device)
        plan = batch.step_cache[key] = _plan(batch, heads, window, (short, long), processors)
    assert isinstance(plan, AttentionPlan)
    return plan


def _plan(
    batch: RaggedBatch, heads: Heads, window: int | None, tiles: tuple[Tiles, Tiles], processors: int | None
) -> AttentionPlan:
    short: list[int] = []
    long: list[int] = []
    for sequence, length in enumerate(batch.host_query_lengths):
        fits = length == 1 or length * heads.group <= tiles[0].rows
        (short if fits else long).append(sequence)
    return AttentionPlan(
        _short_work(batch, short, heads, tiles[0], window, processors) if short else None,
        _long_work(batch, long, heads, tiles[1]) if long else None,
    )


def _short_work(
    batch: RaggedBatch, sequences: list[int], heads: Heads, tiles: Tiles, window: int | None, processors: int | None
) -> Work:
    device = batch.block_tables.device
    rows = [batch.host_query_lengths[sequence] * heads.group for sequence in sequences]
    items = [(s, first) for s, count in zip(sequences, rows, strict=True) for first in range(0, count, tiles.rows)]
    plain = len(items) == len(sequences) == batch.num_sequences
    contexts = [batch.host_context_lengths[sequence] for sequence, _ in items]
    seen = [min(context, window + tiles.rows) if window else context for context in contexts]
    split_tiles = choose_split_tiles(seen, heads.kv_heads, tiles.keys, processors)
    # A window's first key may lie anywhere in a tile: one tile more.
    most_tiles = -(-max(seen) // tiles.keys) + (window is not None)
    num_splits = min(-(-most_tiles // split_tiles), MOST_SPLITS)
    return Work(
        tiles=tiles,
        items=None if plain else to_device(items, torch.int32, device),
        num_items=len(items),
        num_splits=num_splits,
        split_tiles=split_tiles,
        most_rows=min(max(rows), tiles.rows),
        # Even a single one where bits must not depend on the batch: one way for all.
        combined=num_splits > 1 or processors is None,
    )


def choose_split_tiles(seen: Sequence[int], kv_heads: int, tile_keys: int, processors: int | None) -> int:
    """Tiles of keys per split, given the keys each item sees.

    All items' keys are shared out evenly over the programs that fit the device at once, so a long sequence among short
    ones is split more often than they are. With `processors` None the length is constant: a sequence's result then does
    not depend on the batch it is in, nor on the device.
    """
    if processors is None:
        return max(1, DETERMINISTIC_SPLIT_KEYS // tile_keys)
    share = sum(seen) * kv_heads // (processors * PROGRAMS_PER_MULTIPROCESSOR)
    return -(-max(LEAST_SPLIT_KEYS, share) // tile_keys)


def _long_work(batch: RaggedBatch, sequences: list[int], heads: Heads, tiles: Tiles) -> Work:
    work = []
    for sequence in sequences:
        length, context = batch.host_query_lengths[sequence], batch.host_context_lengths[sequence]
        for first in range(0, length * heads.group, tiles.rows):
            last = min((first + tiles.rows - 1) // heads.group, length - 1)
            work.append((context - length + last + 1, sequence, first))
    # Long tiles first, so that the last programs to start are the shortest.
    work.sort(key=lambda item: -item[0])
    items = [(sequence, first) for _, sequence, first in work]
    return Work(
        tiles=tiles,
        items=to_device(items, torch.int32, batch.block_tables.device),
        num_items=len(work),
        num_splits=1,
        split_tiles=0,
        most_rows=tiles.rows,
        combined=False,
    )
