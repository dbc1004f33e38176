"""What launchers ask of a device: always that of their tensors, whichever is current."""

import functools

import torch
import triton  # type: ignore[import-untyped, unused-ignore]

INTERPRETED_MULTIPROCESSORS = 8
"""Taken for tensors on the CPU, which only the interpreter and the compile gate see: enough for splits to occur."""
WARP_GROUP_MAJORS = (9, 10, 11)
"""Hopper (wgmma) and the data center's Blackwell (tcgen05). The workstation's, 12.0, multiplies as Ampere does."""


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors (TRITON_INTERPRET=1 before triton is imported)."""
    return bool(triton.knobs.runtime.interpret)


def launching_on(tensor: torch.Tensor) -> torch.cuda.device_of:
    """Inside, the tensor's device is current: Triton compiles for the current one and launches on its stream."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call, unused-ignore]


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors (compute units on AMD) of a device."""
    return INTERPRETED_MULTIPROCESSORS if device.type == "cpu" else _of_gpu(device)


@functools.cache
def _of_gpu(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def has_warp_group_products(device: torch.device) -> bool:
    """Whether the device's matrix products read their operands from shared memory."""
    return interpreted() or _capability(device)[0] in WARP_GROUP_MAJORS


def check_format(kv_dtype: torch.dtype, device: torch.device) -> None:
    """RuntimeError when the device's instructions cannot convert the pool's format."""
    if kv_dtype.itemsize == 1 and not interpreted() and (0, 0) < _capability(device) < (8, 9):
        raise RuntimeError(f"a pool of {kv_dtype} needs compute capability 8.9 or later")


def _capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of NVIDIA's, (0, 0) of AMD's; for tensors on the CPU, of what is compiled for."""
    if device.type == "cuda":
        return (0, 0) if torch.version.hip else torch.cuda.get_device_capability(device)
    target = triton.runtime.driver.active.get_current_target()
    return divmod(int(target.arch), 10) if target.backend == "cuda" else (0, 0)
