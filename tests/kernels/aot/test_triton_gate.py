"""Every Triton kernel, compiled for every target as its launcher calls it, and what the compiler made of it."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable

import pytest
import torch
from aot_gate import TARGETS, Compiled, compiling_for
from aot_report import SHARED_BYTES, Report, report
from triton.runtime.jit import JITFunction

import kernels.triton
from kernels import PoolShape, RaggedBatch
from kernels.triton import paged_attention, write_kv, write_rotated_kv, zero_blocks

pytestmark = pytest.mark.aot

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def attention(
    heads: tuple[int, int],
    head_dim: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None = None,
    block_size: int = 16,
    **options: object,
) -> Callable[[], object]:
    """A step of two decoded tokens, one of them split, and a chunk: what a worker calls."""

    def call() -> None:
        shape = PoolShape(1500 // block_size, 2, heads[1], block_size, head_dim, kv_dtype or dtype)
        pool = torch.empty(shape.dims, dtype=shape.dtype)
        tables = [list(range(1, length // block_size + 2)) for length in (1400, 1, 500)]
        batch = RaggedBatch.of([1, 1, 300], [1400, 1, 500], tables)
        query = torch.empty(batch.num_tokens, heads[0], head_dim, dtype=dtype)
        scales = torch.ones(2, heads[1]) if kv_dtype else None
        paged_attention(query, pool, 1, batch, scale=0.1, kv_scales=scales, **options)

    return call


def write(
    head_dim: int, half: int | None, dtype: torch.dtype, kv_dtype: torch.dtype | None = None
) -> Callable[[], object]:
    """K and V out of fused projections of 32 + 8 + 8 heads, with or without their rotation."""

    def call() -> None:
        shape = PoolShape(10, 2, 8, 16, head_dim, kv_dtype or dtype)
        pool = torch.empty(shape.dims, dtype=shape.dtype)
        query, key, value = torch.empty(7, 48, head_dim, dtype=dtype).split((32, 8, 8), 1)
        slots, scales = torch.arange(16, 23), torch.ones(2, 8) if kv_dtype else None
        if half is None:
            write_kv(pool, 1, key, value, slots, kv_scales=scales)
        else:
            turn = torch.empty(2, 7, half)
            write_rotated_kv(pool, 1, query, key, value, slots, *turn, kv_scales=scales)

    return call


def zero() -> None:
    zero_blocks(torch.empty(PoolShape(10, 2, 8, 16, 128, BF16).dims, dtype=BF16), [3, 5])


everything = {"window": 100, "soft_cap": 30.0, "sinks": torch.zeros(32)}
CALLS: dict[str, Callable[[], object]] = {
    "attention 64 bf16": attention((9, 3), 64, BF16),
    "attention 80 bf16, window, cap, sinks": attention((32, 8), 80, BF16, **everything),
    "attention 128 bf16": attention((32, 8), 128, BF16),
    "attention 128 fp16, groups of 7, blocks of 7": attention((28, 4), 128, FP16, block_size=7),
    "attention 128 bf16 over e4m3": attention((32, 8), 128, BF16, E4M3),
    "attention 128 fp16 over e5m2": attention((32, 8), 128, FP16, E5M2),
    "attention 256 bf16": attention((8, 4), 256, BF16),
    "attention 128 bf16, one group of 48": attention((48, 1), 128, BF16),
    "attention 128 fp32": attention((9, 3), 128, FP32),
    "write 128 bf16": write(128, None, BF16),
    "write 128 bf16 to e5m2": write(128, None, BF16, E5M2),
    "rotate and write 128 bf16": write(128, 64, BF16),
    "rotate part and write 80 fp16": write(80, 16, FP16),
    "zero": zero,
}
SAMPLED = {"sm_89", "sm_120"}
"""Targets that take the tiles of sm_80: the calls that need most of a multiprocessor stand for all."""
SAMPLES = ("attention 128 bf16", "attention 128 bf16 over e4m3", "attention 256 bf16")
GATED = [(call, target) for target in TARGETS for call in (SAMPLES if target in SAMPLED else CALLS)]
REFUSED = {(call, "sm_80") for call in CALLS if "e4m3" in call or "e5m2" in call}


def compiled(call: str, target: str) -> list[Compiled]:
    with compiling_for(target) as launches:
        CALLS[call]()
    return launches


@pytest.mark.parametrize(("call", "target"), GATED)
def test_gate(call: str, target: str) -> None:
    if (call, target) in REFUSED:
        with pytest.raises(RuntimeError, match="needs compute capability"):
            compiled(call, target)
        return
    launches = compiled(call, target)
    assert launches
    for launch in launches:
        made = report(launch)
        assert made.spilled_bytes == 0, launch.name
        assert made.shared_bytes <= SHARED_BYTES[target], launch.name
        if launch.name == "zero_blocks_kernel":
            assert made.wide_stores > 0
            continue
        assert made.wide_loads > 0, launch.name
        assert made.narrow_loads == 0, launch.name
        if launch.name == "paged_attention_kernel" and "fp32" not in call:
            assert sum(made.products.values()) > 0
            prefill = launch.arguments["ROWS"] >= 64 and not launch.arguments["SPLIT"]
            if prefill:
                assert (made.warp_group_products > 0) == (target in ("sm_90", "sm_100"))


def kernels_of_package() -> dict[str, JITFunction]:
    """Every Triton function of `kernels.triton`, by name."""
    modules = [
        importlib.import_module(m.name) for m in pkgutil.iter_modules(kernels.triton.__path__, "kernels.triton.")
    ]
    functions = [f for module in modules for f in vars(module).values() if isinstance(f, JITFunction)]
    return {f.__name__: f for f in functions}


def not_compiled(functions: dict[str, JITFunction], launches: Iterable[Compiled]) -> set[str]:
    """Functions that are neither launched nor called by another one."""
    launched = {launch.name for launch in launches}
    called = {
        name
        for name in functions
        for other, function in functions.items()
        if other != name and re.search(rf"\b{name}\(", inspect.getsource(function.fn))
    }
    return set(functions) - launched - called


def test_no_kernel_escapes_the_gate() -> None:
    launches = [launch for call in CALLS for launch in compiled(call, "sm_90")]
    functions = kernels_of_package()
    assert {"paged_attention_kernel", "combine_splits_kernel", "attend_keys"} <= set(functions)
    assert not_compiled(functions, launches) == set()
    fewer = [launch for launch in launches if launch.name != "combine_splits_kernel"]
    assert not_compiled(functions, fewer) == {"combine_splits_kernel"}


def test_launches_are_specialised_as_at_run_time() -> None:
    """What makes wide loads legal is in the signature: pointers and strides that are multiples of 16."""
    launch = compiled("attention 128 bf16", "sm_90")[0]
    text = launch.result.asm["ttir"]
    for argument in ("query", "keys", "values"):
        assert re.search(rf"%{argument}: !tt.ptr<bf16> {{tt.divisibility = 16 : i32}}", text)
    assert re.search(r"%kv_block_stride: i32 {tt.divisibility = 16 : i32}", text)
    # Two decoded tokens, 8 KV heads. 1,401 keys * 8 over 8 * 4 programs are 350 keys, or 6 tiles of 64, a split.
    assert launch.grid == (2 * 8, 4)


def launch_keys(target: str, *calls: Callable[[], object]) -> dict[str, int]:
    """Kernels that were compiled for these calls, and how many times each."""
    with compiling_for(target) as launches:
        for call in calls:
            call()
    return {name: len({id(one.result) for one in launches if one.name == name}) for name in {x.name for x in launches}}


def test_batches_that_differ_are_served_by_the_same_kernels() -> None:
    """Tables of 1, 16 and 17 blocks, windows, splits of various lengths and numbers, slots that start anywhere."""
    pool = torch.empty(PoolShape(1500, 1, 2, 16, 64, BF16).dims, dtype=BF16)

    def step(contexts: list[int], blocks: int, window: int | None) -> Callable[[], object]:
        def call() -> None:
            batch = RaggedBatch.of([1] * len(contexts), contexts, torch.ones(len(contexts), blocks, dtype=torch.int32))
            paged_attention(torch.empty(len(contexts), 4, 64, dtype=BF16), pool, 0, batch, scale=0.1, window=window)

        return call

    wide = [step([9000] * 8, 600, None), step([4100, 5], 257, None), step([700], 48, None)]
    assert launch_keys("sm_90", *wide) == {"paged_attention_kernel": 1, "combine_splits_kernel": 1}
    narrow = [step([10], 1, 1), step([256], 16, 16), step([250, 1], 17, 100)]
    assert launch_keys("sm_90", *narrow) == {"paged_attention_kernel": 1}
    rows, slots = torch.empty(2, 2, 64, dtype=BF16), torch.arange(16, 24)
    writes = [lambda at=at: write_kv(pool, 0, rows, rows, slots[at : at + 2]) for at in range(3)]
    assert launch_keys("sm_90", *writes) == {"write_kv_kernel": 1}


@pytest.mark.parametrize("call", ["write 128 bf16 to e5m2"])
def test_nan_passes_the_bounds_of_fp8(call: str) -> None:
    """max.f32 and min.f32 give the bound for NaN."""
    (launch,) = compiled(call, "sm_90")
    bounds = re.findall(r"\b(?:max|min)[\w.]*\.f32", launch.result.asm["ptx"])
    assert bounds
    assert all("NaN" in bound for bound in bounds)


# Negative controls: each of them compiles, and must be caught.


def attention_reports(target: str = "sm_90", **overrides: int) -> list[Report]:
    with compiling_for(target, **overrides) as launches:
        attention((32, 8), 128, BF16)()
    return [report(launch) for launch in launches if launch.name == "paged_attention_kernel"]


def test_too_few_registers_are_seen_as_spills() -> None:
    assert all(made.spilled_bytes > 0 for made in attention_reports("sm_80", maxnreg=64))


def test_too_many_stages_are_seen_as_shared_memory() -> None:
    assert all(made.shared_bytes > SHARED_BYTES["sm_90"] for made in attention_reports(num_stages=20))


def test_unaligned_rows_are_seen_as_narrow_loads() -> None:
    pool = torch.empty(PoolShape(10, 2, 8, 16, 129, BF16).dims, dtype=BF16)[..., :128]
    batch = RaggedBatch.of([1], [100], [list(range(1, 8))])
    with compiling_for("sm_90") as launches:
        paged_attention(torch.empty(1, 32, 128, dtype=BF16), pool, 1, batch, scale=0.1)
    assert report(launches[0]).narrow_loads > 0


def test_small_tiles_have_no_warp_group_products() -> None:
    decode, prefill = attention_reports()
    assert decode.products["HMMA"] > 0
    assert decode.warp_group_products == 0
    assert prefill.warp_group_products > 0
