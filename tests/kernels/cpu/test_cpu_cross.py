"""Kernels of processors that are not at hand: NEON's by an emulator, AVX-512's with every vector split in two."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels.cpu import build

CHECK = Path(__file__).with_name("cross_check.cpp")
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def check(command: list[str], runner: list[str], program: Path) -> None:
    """Sums of up to 300 products, weights of 32, 8 and 4 bits; attention with head dims 32 and 80, windows, chunks."""
    sources = [f"-I{build.SOURCES}", str(build.SOURCES / "isa.cpp"), str(CHECK)]
    subprocess.run([*command, *build.COMMON, *build.VECTOR, *sources, "-o", str(program)], check=True)
    said = subprocess.run([*runner, str(program)], capture_output=True, text=True, check=True).stdout
    found = re.fullmatch(r"\w+ linear (\S+) attention (\S+) top (\d+)\n", said)
    assert found, said
    assert float(found[1]) < 1e-6
    assert float(found[2]) < 1e-5
    assert found[3] == "700"


@pytest.mark.e2e
@pytest.mark.skipif(platform.machine() == "aarch64", reason="the other tests run these kernels here")
@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"needs {COMPILER} and {EMULATOR}")
def test_neon_kernels(tmp_path: Path) -> None:
    check([COMPILER, "-static", "-DOCTAVO_ISA=neon"], [EMULATOR], tmp_path / "check")


@pytest.mark.e2e
@pytest.mark.skipif(platform.machine() != "x86_64", reason="wide vectors are those of x86-64")
def test_wide_kernels(tmp_path: Path) -> None:
    """The logic of 16 lanes, not the instructions. Head dim 80 is 5 registers of 16, and tiles have 14 rows."""
    check(["g++", *build.X86["avx2"], "-DOCTAVO_WIDE", "-DOCTAVO_ISA=wide"], [], tmp_path / "check")
