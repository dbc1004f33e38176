"""Block copies and swaps on NVIDIA GPUs: CUDA C++ and copy engines by way of CuPy, imported at first use.

Everything is queued on torch's current stream of the pool's device.
"""

from collections.abc import Sequence

import torch

from kernels.block_pairs import check_copies
from kernels.cuda.driver import CupyDriver, unavailable
from kernels.cuda.moves import copy_runs, launch_moves, prefers_launch
from kernels.staging import to_device

__all__ = ["copy_blocks", "move_between", "unavailable"]


def copy_blocks(pool: torch.Tensor, sources: Sequence[int], destinations: Sequence[int]) -> None:
    """`kernels.copy_blocks` for a contiguous pool on a GPU, all pairs and layers in one launch."""
    check_copies(sources, destinations, pool.shape[0])
    if sources:
        launch_moves(_driver(pool.device), pool, pool, _pairs(sources, destinations, pool.device))


def move_between(
    source: torch.Tensor, destination: torch.Tensor, sources: Sequence[int], destinations: Sequence[int]
) -> None:
    """Blocks from a pool to the host or back, pairs being checked: by `kernels.swap_out` and `kernels.swap_in`."""
    pool, host = (source, destination) if source.is_cuda else (destination, source)
    driver = _driver(pool.device)
    if prefers_launch(pool.stride(0) * pool.element_size(), host.is_pinned()):
        launch_moves(driver, source, destination, _pairs(sources, destinations, pool.device))
    else:
        copy_runs(driver, source, destination, sources, destinations)


def _driver(device: torch.device) -> CupyDriver:
    if reason := unavailable():
        raise RuntimeError(reason)
    index = device.index if device.index is not None else torch.cuda.current_device()
    return CupyDriver(index, torch.cuda.current_stream(index).cuda_stream)


def _pairs(sources: Sequence[int], destinations: Sequence[int], device: torch.device) -> torch.Tensor:
    return to_device(list(zip(sources, destinations, strict=True)), torch.int64, device)
