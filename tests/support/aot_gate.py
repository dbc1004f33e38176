"""The compile gate: launchers run as they do on a GPU, but the launch ends at the compiled kernel.

Triton asks its active driver which device it compiles for. With a driver that names a target, on a machine without any
GPU, a launcher's own call decides everything else: types, which integers are multiples of 16, what is constant, warps,
stages. What is checked is therefore what would run.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


class TargetDriver:
    """What Triton needs of a driver to compile; every target is a device of its own, so that caches stay apart."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> GPUTarget:
        return self._target

    def get_current_stream(self, device: GPUTarget) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Compiled:
    """One launch as it was compiled. `grid` is the launcher's, `result` Triton's own compiled kernel."""

    kernel: JITFunction
    name: str
    target: str
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    result: Any


@contextlib.contextmanager
def compiling_for(target: str, **overrides: Any) -> Iterator[list[Compiled]]:
    """Inside, every launch compiles for `target` and is recorded instead of run; `overrides` replace its options."""
    compiled: list[Compiled] = []
    run = JITFunction.run

    def record(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kwargs.update(overrides)
        result = run(self, *args, grid=grid, warmup=True, **kwargs)
        result = result.result() if hasattr(result, "result") else result
        named = dict(zip(self.arg_names, args, strict=False)) | kwargs
        compiled.append(Compiled(self, self.__name__, target, tuple(grid), named, result))
        return result

    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(TargetDriver(TARGETS[target]))
    JITFunction.run = record
    try:
        yield compiled
    finally:
        JITFunction.run = run
        triton.runtime.driver._active = before


def disassembled(cubin: bytes) -> str:
    """SASS of a cubin."""
    return _of_file(cubin, "nvdisasm", "-c")


def resource_usage(cubin: bytes) -> str:
    """Registers, stack and shared memory of every kernel of a cubin."""
    return _of_file(cubin, "cuobjdump", "--dump-resource-usage")


def _of_file(cubin: bytes, tool: str, option: str) -> str:
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    assert path.exists(), f"triton {triton.__version__} carries no {tool}"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([path, option, file.name], capture_output=True, text=True, check=True).stdout
