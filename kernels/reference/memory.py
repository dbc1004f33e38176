"""Memory for the pool, from torch's own allocator."""

import torch

from kernels.pool import PoolShape


def allocate_pool(shape: PoolShape, device: torch.device | str = "cpu") -> torch.Tensor:
    """`kernels.allocate_pool`."""
    return torch.zeros(shape.dims, dtype=shape.dtype, device=device)
