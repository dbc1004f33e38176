"""A CUDA driver on the CPU: the very source of the kernels, built by g++, launched as CuPy launches it."""

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kernels.cuda.driver import SOURCE


@functools.cache
def signatures() -> dict[str, tuple[str, ...]]:
    """Every kernel of the CUDA source: its parameters' types, as written."""
    found = re.findall(r'extern "C" __global__ void (\w+)\(([^)]*)\)', SOURCE.read_text())
    return {name: tuple(p.strip().rsplit(" ", 1)[0] for p in parameters.split(",")) for name, parameters in found}


@functools.cache
def _library() -> ctypes.CDLL:
    compiler = shutil.which("g++")
    assert compiler, "the CUDA source is tested by compiling it with g++"
    launchers = []
    for name, types in signatures().items():
        parameters = ", ".join(f"{type_} p{i}" for i, type_ in enumerate(types))
        arguments = ", ".join(f"p{i}" for i in range(len(types)))
        launchers.append(
            f'extern "C" void launch_{name}(unsigned columns, unsigned rows, unsigned threads, {parameters}) '
            f"{{ run_on_cpu(columns, rows, threads, [=] {{ {name}({arguments}); }}); }}"
        )
    header = Path(__file__).with_suffix(".h")
    # Gone before the process is: what is loaded needs its file no more.
    with tempfile.TemporaryDirectory(prefix="octavo-cuda-") as folder:
        source, built = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        source.write_text(f'#include "{header}"\n{SOURCE.read_text()}\n' + "\n".join(launchers))
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", built, source], check=True)
        return ctypes.CDLL(str(built))


@dataclass
class CpuDriver:
    """`kernels.cuda.driver.Driver` over CPU memory; remembers what it was asked for."""

    launches: list[tuple[str, tuple[int, int], int, tuple[np.generic, ...]]] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, arguments: tuple[np.generic, ...]) -> None:
        self.launches.append((kernel, grid, threads, arguments))
        types = {"u": ctypes.c_uint64, "i": ctypes.c_int64}
        getattr(_library(), f"launch_{kernel}")(
            *map(ctypes.c_uint, (*grid, threads)), *(types[a.dtype.kind](int(a)) for a in arguments)
        )

    def copy(self, destination: int, source: int, num_bytes: int) -> None:
        self.copies.append((destination, source, num_bytes))
        ctypes.memmove(destination, source, num_bytes)
