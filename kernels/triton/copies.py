"""Block copies on a GPU: by CuPy in one launch, or by torch without CuPy."""

from collections.abc import Sequence

import torch

from kernels import cuda
from kernels.reference.copies import copy_blocks as copy_blocks_by_torch


def copy_blocks(pool: torch.Tensor, sources: Sequence[int], destinations: Sequence[int]) -> None:
    """`kernels.copy_blocks`."""
    if pool.is_cuda and cuda.unavailable() is None:
        cuda.copy_blocks(pool, sources, destinations)
    else:
        copy_blocks_by_torch(pool, sources, destinations)
