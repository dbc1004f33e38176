"""Every CUDA kernel, compiled by NVRTC for every NVIDIA target, against what its launcher passes."""

import re

import pytest
import torch
from aot_report import of_cubin
from cuda_on_cpu import CpuDriver, signatures
from nvrtc import compile_cuda

from kernels.cuda.driver import SOURCE
from kernels.cuda.moves import launch_moves

pytestmark = pytest.mark.aot

TARGETS = ("sm_80", "sm_90", "sm_100")


@pytest.mark.parametrize("target", TARGETS)
def test_gate(target: str) -> None:
    cubin = compile_cuda(SOURCE.read_text(), target)
    for kernel in signatures():
        made = of_cubin(cubin, kernel)
        assert made.spilled_bytes == 0
        assert made.registers <= 64, "256 threads of 64 registers: 4 blocks fit a multiprocessor"
        if kernel == "move_blocks_by_16":
            assert made.wide_loads >= 4, "four loads under way"
            assert made.wide_stores >= 4
            assert made.narrow_loads == 0
        else:
            assert made.narrow_loads > 0


def test_launches_pass_what_the_kernels_take() -> None:
    """Every kernel is launched, with as many arguments as its PTX declares, each as wide."""
    driver = CpuDriver()
    for block_bytes in (48, 40):
        memory = torch.zeros(4, block_bytes, dtype=torch.uint8)
        launch_moves(driver, memory, memory, torch.tensor([[1, 2]]))
    ptx = compile_cuda(SOURCE.read_text(), "compute_90").decode()
    passed = {kernel: [argument.nbytes * 8 for argument in arguments] for kernel, _, _, arguments in driver.launches}
    declared = {
        kernel: [int(width) for width in re.findall(rf"\.param \.[bus](\d+).*? {kernel}_param_\d+", ptx)]
        for kernel in signatures()
    }
    assert passed == declared


def test_what_does_not_compile_is_refused_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match="nope"):
        compile_cuda("__global__ void k() { int x = nope; }", "sm_90")


def test_narrow_words_are_seen_as_narrow_loads() -> None:
    """The negative control: the same kernel over words of 2 bytes."""
    narrow = SOURCE.read_text().replace("int4", "short")
    assert of_cubin(compile_cuda(narrow, "sm_90"), "move_blocks_by_16").wide_loads == 0
