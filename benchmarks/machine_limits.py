"""What this machine can do at most, measured: multiply-adds in float32, and reading memory in small and huge pages.

    python benchmarks/machine_limits.py [--threads 2] [--cpu-time]

--cpu-time counts processor time instead of elapsed time: what the threads would reach if neighbours left the cores to
them, but for what they take of caches and memory.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.cpu import build
from kernels.cpu.memory import huge_zeros

SOURCE = Path(__file__).with_name("limits.cpp")
ROUNDS = 4_000_000
BYTES = 256 * 2**20
"""Read by each thread; more than a third-level cache holds."""
REPEATS = 5


@dataclass(frozen=True)
class Limits:
    """Of all threads together."""

    flops: float
    """float32 operations per second; a multiply-add is two."""
    small_pages: float
    """Bytes per second."""
    huge_pages: float

    def __str__(self) -> str:
        return (
            f"multiply-adds {self.flops / 1e9:.0f} GFLOP/s, reading {self.small_pages / 1e9:.1f} GB/s in small pages, "
            f"{self.huge_pages / 1e9:.1f} GB/s in huge ones"
        )


def measure(threads: int, cpu_time: bool) -> Limits:
    """The best of a few measurements each: what disturbs a measurement makes it slower, never faster."""
    with tempfile.TemporaryDirectory() as folder:
        library = _compiled(Path(folder) / "limits.so")
    small = torch.ones(BYTES * threads, dtype=torch.uint8)
    huge = huge_zeros(BYTES * threads).fill_(1)

    def read(memory: torch.Tensor) -> Callable[[int], tuple[int, float]]:
        return lambda thread: _call(library.read_memory, cpu_time, memory.data_ptr() + thread * BYTES, BYTES)

    def best(one: Callable[[int], tuple[int, float]]) -> float:
        rates = []
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(REPEATS):
                done = list(pool.map(one, range(threads)))
                rates.append(sum(count for count, _ in done) / max(seconds for _, seconds in done))
        return max(rates)

    return Limits(best(lambda _: _call(library.multiply_add, cpu_time, ROUNDS)), best(read(small)), best(read(huge)))


def _call(function: Callable[..., int], cpu_time: bool, *arguments: int) -> tuple[int, float]:
    elapsed, processor = ctypes.c_double(), ctypes.c_double()
    count = function(*map(ctypes.c_int64, arguments), ctypes.byref(elapsed), ctypes.byref(processor))
    return count, (processor if cpu_time else elapsed).value


def _compiled(target: Path) -> ctypes.CDLL:
    """With the vectors of the kernels, for this processor."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise SystemExit("needs a C++ compiler: g++ or c++")
    options = [*build.COMMON, *build.VECTOR, "-march=native", "-DOCTAVO_ISA=limits", f"-I{build.SOURCES}"]
    exported = [option for option in options if option != "-fvisibility=hidden"]
    subprocess.run([compiler, *exported, "-shared", str(SOURCE), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    for function in (library.multiply_add, library.read_memory):
        function.restype = ctypes.c_int64
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time instead of elapsed time")
    options = parser.parse_args()
    print(measure(options.threads, options.cpu_time))


if __name__ == "__main__":
    main()
