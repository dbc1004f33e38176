"""How pairs of blocks become launches and copies."""

from collections.abc import Sequence

import numpy as np
import torch

from kernels.block_pairs import runs
from kernels.cuda.driver import Driver

THREADS = 256
WORDS_PER_THREAD = 16
MOST_ROWS = 65535
"""The largest second dimension of a grid; a row takes every 65,535th pair."""
SMALL_BLOCK_BYTES = 64 * 1024
"""Below it, a copy engine spends more time per copy than per byte: one launch moves all blocks instead.
From published figures (copies under 28 KiB lose their rate); not measured here."""


def launch_moves(driver: Driver, source: torch.Tensor, destination: torch.Tensor, pairs: torch.Tensor) -> None:
    """One launch that copies source block pairs[i, 0] to destination block pairs[i, 1], bit for bit.

    source, destination  contiguous [blocks, ...] of one block layout, each device or pinned host memory
    pairs                int64 [n, 2] on the device

    Raises ValueError when blocks are not contiguous.
    """
    _check_contiguous(source, destination)
    block_bytes = source.stride(0) * source.element_size()
    addresses = (destination.data_ptr(), source.data_ptr())
    word = 16 if all(number % 16 == 0 for number in (block_bytes, *addresses)) else 1
    words = block_bytes // word
    columns = -(-words // (THREADS * WORDS_PER_THREAD))
    driver.launch(
        f"move_blocks_by_{word}",
        (columns, min(len(pairs), MOST_ROWS)),
        THREADS,
        (
            *map(np.uint64, addresses),
            np.uint64(pairs.data_ptr()),
            np.int64(len(pairs)),
            np.int64(words),
        ),
    )


def copy_runs(
    driver: Driver,
    source: torch.Tensor,
    destination: torch.Tensor,
    sources: Sequence[int],
    destinations: Sequence[int],
) -> None:
    """One copy per run of neighbouring blocks: a block of a block-major pool is one contiguous piece.

    Raises ValueError when it is not.
    """
    _check_contiguous(source, destination)
    block_bytes = source.stride(0) * source.element_size()
    for run in runs(sources, destinations):
        driver.copy(
            destination.data_ptr() + run.destination * block_bytes,
            source.data_ptr() + run.source * block_bytes,
            run.length * block_bytes,
        )


def prefers_launch(block_bytes: int, host_is_pinned: bool) -> bool:
    """Whether blocks between pool and host are better moved by a launch; it can address pinned memory only."""
    return host_is_pinned and block_bytes < SMALL_BLOCK_BYTES


def _check_contiguous(*sides: torch.Tensor) -> None:
    if not all(side.is_contiguous() for side in sides):
        raise ValueError("blocks are moved as contiguous pieces, and these are not contiguous")
