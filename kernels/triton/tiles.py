"""Tile shapes of the attention kernels: rows and keys per tile, warps, and how many tiles are loaded ahead.

Chosen from what the compiler reports for each shape: the largest tiles that spill no register and fit shared memory
(tests/kernels/aot asserts both for every choice here). Not yet measured on a device.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Tiles:
    """`rows` x `keys` scores at a time by `warps` warps; `stages` counts the tile in use and those on their way."""

    rows: int
    keys: int
    warps: int
    stages: int


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def short_tiles(group: int, dim_tile: int, dtype: torch.dtype) -> Tiles:
    """Decode: bound by reading KV, so rows are no more than the group has, and KV tiles in flight are what counts.

    A matrix instruction has at least 16 rows.
    """
    if dtype == torch.float32:
        return _float32_tiles(dim_tile)
    rows = min(max(16, power_of_two(group)), 64)
    return Tiles(rows, 64, 4, 3) if dim_tile <= 128 else Tiles(rows, 32, 4, 2)


def long_tiles(dim_tile: int, dtype: torch.dtype, kv_dtype: torch.dtype, warp_group_products: bool) -> Tiles:
    """Prefill: bound by arithmetic, so rows are many. A warp group of Hopper multiplies 64 rows at once, and two of
    them share a tile of keys. Elsewhere both operands pass through registers, which hold less: fewer keys, and with fp8
    KV, which is widened there, fewer rows.
    """
    if dtype == torch.float32:
        return _float32_tiles(dim_tile)
    if dim_tile > 128:
        return Tiles(64, 32, 8, 2)
    if warp_group_products or dim_tile <= 64:
        return Tiles(128, 64, 8, 3)
    return Tiles(128, 32, 8, 3) if kv_dtype.itemsize > 1 else Tiles(64, 64, 8, 2)


def _float32_tiles(dim_tile: int) -> Tiles:
    """No matrix instruction multiplies float32 exactly: small tiles, which scalar units and registers can hold."""
    if dim_tile <= 64:
        return Tiles(16, 32, 4, 2)
    return Tiles(16, 32, 8, 2) if dim_tile <= 128 else Tiles(16, 16, 4, 2)
