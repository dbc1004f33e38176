"""Memory in huge pages: reading a pool or weights front to back is then bound by memory, not by page walks."""

import ctypes
import math
import mmap

import torch

from kernels.pool import PoolShape

HUGE_PAGE = 2 * 1024 * 1024
_MADV_HUGEPAGE = 14
_ARENA_BYTES = 32 * HUGE_PAGE
_ALIGNMENT = 64

_libc = ctypes.CDLL(None, use_errno=True)


def allocate_pool(shape: PoolShape, device: torch.device | str = "cpu") -> torch.Tensor:
    """`kernels.allocate_pool`, advised to be huge pages."""
    return huge_zeros(shape.pool_bytes).view(shape.dtype).view(shape.dims)


def huge_zeros(num_bytes: int) -> torch.Tensor:
    """Zeroed uint8 [num_bytes], aligned to a huge page; touched only when first used. Freed with its last view."""
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    mapped = mmap.mmap(-1, num_bytes + HUGE_PAGE)
    whole = torch.frombuffer(mapped, dtype=torch.uint8)
    skip = -whole.data_ptr() % HUGE_PAGE
    # Advice: where the kernel has no huge pages to give, small ones serve.
    _libc.madvise(ctypes.c_void_p(whole.data_ptr() + skip), ctypes.c_size_t(num_bytes), _MADV_HUGEPAGE)
    return whole[skip : skip + num_bytes]


class Arena:
    """Places tensors one after the other in huge pages. A matrix smaller than a page would have none of its own."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def empty(self, dims: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor; a chunk of memory is freed with the last tensor in it."""
        num_bytes = math.prod(dims) * dtype.itemsize
        taken = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if taken > self._free.numel():
            self._free = huge_zeros(max(taken, _ARENA_BYTES))
        place, self._free = self._free[:num_bytes], self._free[taken:]
        return place.view(dtype).view(dims)
