"""Swaps: blocks between the pool and host blocks, which keep the same layout. Preempted sequences are parked there."""

import mmap
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from kernels.block_pairs import block_ids, check_moves, runs
from kernels.pool import PoolShape


def allocate_host_pool(shape: PoolShape, num_blocks: int, *, pinned: bool) -> torch.Tensor:
    """Host blocks 0 to num_blocks - 1: a CPU tensor `[num_blocks, num_layers, 2, kv_heads, block_size, head_dim]`.

    Memory is only touched when first written, unless it is pinned, which needs a CUDA device: then it is one mapping
    registered with the driver (torch's own pinned memory is rounded up to a power of two: 32 GiB for 20).

    Raises RuntimeError when there is no CUDA device to pin it for, or its driver refuses.
    """
    if num_blocks < 1:
        raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
    if pinned and not torch.cuda.is_available():
        raise RuntimeError(f"pinned host blocks need a CUDA device, and torch {torch.__version__} sees none")
    memory = mmap.mmap(-1, num_blocks * shape.block_bytes)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    if pinned:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = tensor.data_ptr()
        if code := int(runtime.cudaHostRegister(address, tensor.nbytes, 0)):
            raise RuntimeError(f"the CUDA driver did not pin {tensor.nbytes} bytes of host blocks (error {code})")
        # Before the mapping goes: the driver must not keep a registration of memory that is no longer there.
        weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False
    return tensor.view(shape.dtype).view(num_blocks, *shape.dims[1:])


def swap_out(pool: torch.Tensor, host: torch.Tensor, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
    """Host block host_blocks[i] becomes a copy of the pool's block blocks[i].

    pool  [num_blocks + 1, ...], contiguous, on any device; blocks are 1 to num_blocks
    host  [num_host_blocks, ...] on the CPU, contiguous, in the pool's dtype and block layout; blocks count from 0

    With a pool on a GPU the moves are queued on torch's current stream and overlap with the host if it is pinned; until
    the stream has passed them, neither side may be written nor the host's side read.

    ValueError, nothing moved, when the two lists differ in length, a destination occurs twice, a block lies outside,
    the null block takes part, or the two sides differ in layout or share memory; TypeError for ids that are no ints.
    """
    check_sides(pool, host)
    blocks, host_blocks = block_ids("blocks", blocks), block_ids("host_blocks", host_blocks)
    check_moves(blocks, host_blocks, range(1, pool.shape[0]), range(host.shape[0]), "swapped")
    _move(pool, host, blocks, host_blocks)


def swap_in(pool: torch.Tensor, host: torch.Tensor, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
    """The pool's block blocks[i] becomes a copy of host block host_blocks[i]; the rest is as in `swap_out`."""
    check_sides(pool, host)
    blocks, host_blocks = block_ids("blocks", blocks), block_ids("host_blocks", host_blocks)
    check_moves(host_blocks, blocks, range(host.shape[0]), range(1, pool.shape[0]), "swapped")
    _move(host, pool, host_blocks, blocks)


def check_sides(pool: torch.Tensor, host: torch.Tensor) -> None:
    """ValueError unless a block of one side is, byte for byte, a block of the other, and they lie apart."""
    if host.device.type != "cpu":
        raise ValueError(f"host blocks lie on the CPU, not on {host.device}")
    if host.shape[1:] != pool.shape[1:] or host.dtype != pool.dtype:
        raise ValueError(
            f"host blocks are {host.dtype} {list(host.shape[1:])}, the pool's {pool.dtype} {list(pool.shape[1:])}"
        )
    if not (pool.is_contiguous() and host.is_contiguous()):
        raise ValueError("pool and host blocks must be contiguous")
    if pool.device == host.device:
        first, second = sorted((side.data_ptr(), side.data_ptr() + side.nbytes) for side in (pool, host))
        if second[0] < first[1]:
            raise ValueError("the pool and the host blocks overlap in memory")


def _move(source: torch.Tensor, destination: torch.Tensor, sources: Sequence[int], destinations: Sequence[int]) -> None:
    if not sources:
        return
    if source.is_cuda or destination.is_cuda:
        from kernels import cuda

        if cuda.unavailable() is None:
            cuda.move_between(source, destination, sources, destinations)
            return
    for run in runs(sources, destinations):
        ours = source[run.source : run.source + run.length]
        destination[run.destination : run.destination + run.length].copy_(ours, non_blocking=True)
