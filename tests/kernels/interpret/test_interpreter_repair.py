"""The repaired interpreter computes what a GPU computes. Each of these fails on the interpreter as released."""

# ruff: noqa: N803 (upper case names compile-time constants)

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.interpret


@triton.jit
def product_kernel(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def cast_kernel(source, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(source + at).to(out.dtype.element_ty))


@triton.jit
def sum_kernel(source, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(source + tl.arange(0, N)), 0))


@triton.jit
def double_kernel(source, out, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(source + at)
    tl.store(out + at, x + x)


@triton.jit
def count_kernel(bounds, out):
    total = 0
    for step in range(tl.load(bounds), tl.load(bounds + 1), 3):
        total += step
    tl.store(out, total)


def test_bf16_products_are_exact_in_their_factors() -> None:
    a, b = torch.randn(2, 16, 16).bfloat16()
    out = torch.empty(16, 16)
    product_kernel[(1,)](a, b, out, N=16)
    expected = a.double() @ b.double()
    assert (out - expected).abs().max() / expected.abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_casts_round_to_nearest_even(dtype: torch.dtype) -> None:
    source = torch.cat((torch.randn(4094) * 20, torch.tensor([1 + 2**-8, 1 + 3 * 2**-8])))
    out = torch.empty(4096, dtype=dtype)
    cast_kernel[(1,)](source, out, N=4096)
    assert torch.equal(out.float(), source.to(dtype).float())


@pytest.mark.parametrize("kernel", [sum_kernel, double_kernel])
def test_other_bf16_arithmetic_is_refused(kernel: triton.JITFunction) -> None:
    with pytest.raises(Exception, match="bf16: widen it to float32 first"):
        kernel[(1,)](torch.ones(16).bfloat16(), torch.empty(16).bfloat16(), N=16)


def test_loops_take_loaded_bounds() -> None:
    """2 + 5 + 8 = 15."""
    out = torch.zeros(1, dtype=torch.int32)
    count_kernel[(1,)](torch.tensor([2, 11], dtype=torch.int32), out)
    assert out.item() == 15
