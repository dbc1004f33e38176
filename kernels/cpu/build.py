"""Builds the CPU kernels: `python -m kernels.cpu.build`. The wheel's build hook loads it by path: no torch here."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).with_name("src")
LIBRARY = Path(__file__).with_name("liboctavo_cpu.so")

# Errors set by libm and floating-point traps would keep the compiler from using vectors. Never -ffast-math: GCC then
# links start-up code that flushes denormals to zero for the whole process, torch included.
COMMON = (
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
)
VECTOR = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")
X86 = {
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mf16c", "-mprefer-vector-width=512"),
}
INSTRUCTION_SETS: dict[str, dict[str, tuple[str, ...]]] = {"x86_64": X86, "AMD64": X86, "aarch64": {"neon": ()}}


class BuildError(Exception):
    """The library cannot be built here; one line that says why."""


def sources_digest() -> str:
    """Names the sources a library was built from: what an editor leaves beside them is none."""
    digest = hashlib.sha256()
    sources = [path for path in SOURCES.iterdir() if path.suffix in (".h", ".cpp") and path.name[0] != "."]
    for path in (Path(__file__), *sorted(sources)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build(target: Path = LIBRARY, extra: tuple[str, ...] = ()) -> Path:
    """Compiles each instruction set of this machine's family, and links them into `target`, which appears whole.

    CXX names another compiler, as a command line (`ccache g++`); `extra` options go to every compilation and to the
    link. BuildError without a compiler, or with what it said.
    """
    sets = INSTRUCTION_SETS.get(platform.machine())
    if sets is None or not sys.platform.startswith("linux"):
        raise BuildError(f"the CPU kernels are written for Linux on x86-64 and aarch64, not {platform.platform()}")
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        workplace = Path(folder)
        digest = f'-DOCTAVO_SOURCES="{sources_digest()}"'
        commands = {"library.o": [*COMMON, "-O2", digest, *extra, str(SOURCES / "library.cpp")]}
        for isa, flags in sets.items():
            commands[f"{isa}.o"] = [*COMMON, *VECTOR, *flags, f"-DOCTAVO_ISA={isa}", *extra, str(SOURCES / "isa.cpp")]
        with ThreadPoolExecutor() as threads:
            list(
                threads.map(
                    lambda item: _run([*compiler, *item[1], "-c", "-o", str(workplace / item[0])]), commands.items()
                )
            )
        objects = [str(workplace / name) for name in commands]
        fresh = workplace / target.name
        _run([*compiler, "-shared", "-fopenmp", "-Wl,--as-needed", *extra, *objects, "-o", str(fresh)])
        fresh.replace(target)
    return target


def _compiler() -> list[str]:
    wanted = shlex.split(os.environ.get("CXX", ""))
    candidates = [wanted[0]] if wanted else ["g++", "c++", "clang++"]
    found = next(filter(None, map(shutil.which, candidates)), None)
    if found is None:
        raise BuildError(f"no C++ compiler: {', '.join(candidates)} not found")
    return [found, *wanted[1:]]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise BuildError(f"{command[0]} failed: {said[0] if said else f'exit status {done.returncode}'}")


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201
    except BuildError as error:
        sys.exit(str(error))
