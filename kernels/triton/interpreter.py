"""Repairs of Triton's interpreter, so that what it computes is what a GPU would.

As released (3.6), it keeps bf16 as bit patterns in uint16 and computes on the bits: products and sums of bf16 are
garbage, without an error. Casts to bf16 truncate where a GPU rounds to the nearest even, those to fp8 lose a rounding
step. And with numpy 2.4 or later, loops with loaded bounds fail. With the repairs:

    products       bf16 factors are widened exactly, as tensor cores do
    casts          round to nearest even
    other bf16     arithmetic, comparisons and reductions are errors: kernels must widen first
    loops          bounds of one element are integers
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from triton.runtime import interpreter  # type: ignore[import-untyped, unused-ignore]

REFUSED = (
    "create_fadd",
    "create_fsub",
    "create_fmul",
    "create_fdiv",
    "create_fcmpOLT",
    "create_fcmpOGT",
    "create_fcmpOLE",
    "create_fcmpOGE",
    "create_maximumf",
    "create_minimumf",
    "create_maxnumf",
    "create_minnumf",
)
ROUNDED = {
    tl.bfloat16: (torch.bfloat16, torch.int16, np.uint16),
    tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8, np.uint8),
    tl.float8e5: (torch.float8_e5m2, torch.uint8, np.uint8),
}


def widened(bits: np.ndarray) -> np.ndarray:
    """float32 of bf16 bit patterns: the upper half of the word."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: np.ndarray, to: Any) -> np.ndarray:
    """Bit patterns of float32 values in a narrower format, by torch, which rounds to nearest even."""
    dtype, as_bits, bits = ROUNDED[to]
    narrow = torch.from_numpy(np.array(values, dtype=np.float32)).to(dtype)
    return narrow.view(as_bits).numpy().view(bits)


def repair() -> None:
    """Patches the interpreter of this process, once."""
    assert triton.knobs.runtime.interpret, "TRITON_INTERPRET=1 must be set before triton is imported"
    builder = interpreter.InterpreterBuilder
    if getattr(builder, "repaired", False):
        return
    builder.repaired = True
    _round_casts(builder)
    _widen_products(builder)
    for name in REFUSED:
        if hasattr(builder, name):
            setattr(builder, name, _refusing_bf16(name, getattr(builder, name)))
    for reductions in (interpreter.ReduceOps, interpreter.ScanOps):
        reductions.apply = _refusing_bf16(reductions.__name__, reductions.apply)
    patch = interpreter._patch_lang_tensor

    def patch_and_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_index


def _round_casts(builder: Any) -> None:
    for name in ("cast_impl", "create_fp_to_fp"):
        cast = getattr(builder, name)

        def round_to(self: Any, source: Any, to: Any, *rest: Any, cast: Callable[..., Any] = cast) -> Any:
            if source.dtype.scalar == tl.float32 and to.scalar in ROUNDED:
                return interpreter.TensorHandle(rounded(source.data, to.scalar), to.scalar)
            return cast(self, source, to, *rest)

        setattr(builder, name, round_to)


def _widen_products(builder: Any) -> None:
    dot = builder.create_dot

    def widen(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle(widened(handle.data), tl.float32)

    builder.create_dot = lambda self, a, b, *rest: dot(self, widen(a), widen(b), *rest)


def _refusing_bf16(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def refuse(*arguments: Any, **named: Any) -> Any:
        for argument in arguments:
            for part in argument if isinstance(argument, tuple | list) else (argument,):
                dtype = getattr(part, "dtype", None)
                if dtype is not None and getattr(dtype, "scalar", None) == tl.bfloat16:
                    raise TypeError(f"{name} of bf16: widen it to float32 first")
        return function(*arguments, **named)

    return refuse
