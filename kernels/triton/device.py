"""What launchers ask of a device."""

import functools

import torch
import triton  # type: ignore[import-untyped, unused-ignore]

INTERPRETED_MULTIPROCESSORS = 8
"""Taken for tensors on the CPU, which only the interpreter and the compile gate see: enough for splits to occur."""


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors (TRITON_INTERPRET=1 before triton is imported)."""
    return bool(triton.knobs.runtime.interpret)


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors (compute units on AMD) of a device."""
    return INTERPRETED_MULTIPROCESSORS if device.type == "cpu" else _of_gpu(device.index or 0)


@functools.cache
def _of_gpu(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def has_warp_group_products() -> bool:
    """Whether matrix products read their operands from shared memory: NVIDIA's since Hopper (wgmma, tcgen05)."""
    return interpreted() or _nvidia_architecture() >= 90


def check_format(kv_dtype: torch.dtype) -> None:
    """RuntimeError when the device's instructions cannot convert the pool's format."""
    if kv_dtype.itemsize == 1 and not interpreted() and 0 < _nvidia_architecture() < 89:
        raise RuntimeError(f"a pool of {kv_dtype} needs compute capability 8.9 or later")


def _nvidia_architecture() -> int:
    """Compute capability times ten of the current device, 0 for AMD's."""
    target = triton.runtime.driver.active.get_current_target()
    return int(target.arch) if target.backend == "cuda" else 0
