"""The CUDA kernels compiled as HIP for gfx942, where a clang for it is at hand."""

from pathlib import Path

import pytest
from cuda_on_cpu import signatures
from hip import compile_hip, compiler

from kernels.cuda.driver import SOURCE

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(compiler() is None, reason="needs clang with AMD's targets: pip install ziglang"),
]


def test_gate(tmp_path: Path) -> None:
    made = compile_hip(SOURCE.read_text(), "gfx942", tmp_path)
    assert made.keys() == set(signatures())
    for kernel in made.values():
        assert kernel.spills == kernel.stack_bytes == 0
        assert kernel.vector_registers <= 128, "4 waves fit a SIMD of 512 registers"
    assert made["move_blocks_by_16"].wide_loads >= 4, "four loads under way"
    assert made["move_blocks_by_16"].wide_stores >= 4
    assert made["move_blocks_by_1"].wide_loads == 0


def test_narrow_words_and_what_does_not_compile_are_seen(tmp_path: Path) -> None:
    """The negative controls: words of 2 bytes, and an unknown name."""
    narrow = compile_hip(SOURCE.read_text().replace("int4", "short"), "gfx942", tmp_path)
    assert narrow["move_blocks_by_16"].wide_loads == 0
    with pytest.raises(RuntimeError, match="nope"):
        compile_hip("__global__ void k() { int x = nope; }", "gfx942", tmp_path)
