"""CPU kernels against the machine's own limits and against plain torch.

    python benchmarks/kernels_cpu.py [--threads 2] [--repeats 15] [--quick] [--cpu-time]

Each line interleaves ours, torch and a probe of the limit, and takes the tenth percentile of each: on a shared machine
only ratios within a line mean anything. Limits: for decode, reading as many bytes with torch's sum; for prefill, a
large product, ours or torch's, whichever is faster. KV and weights are cycled: they come from memory, not from cache.

--cpu-time counts the processor time of all threads, divided by their number: what it would take if neighbours left the
cores alone, but for what they take of caches and memory.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import scaled_dot_product_attention

import kernels
from kernels import PoolShape, RaggedBatch, reference
from kernels.cpu.memory import huge_zeros

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
OUT_OF_CACHE = 256 * 2**20
SCALE = HEAD_DIM**-0.5
PROJECTIONS = {"qkv": (960, 576), "attention out": (576, 576), "gate and up": (3072, 576), "down": (576, 1536)}


clock: Callable[[], float] = time.perf_counter


def processor_time() -> float:
    return time.process_time() / torch.get_num_threads()


def tenth_percentiles(calls: Sequence[Callable[[int], object]], repeats: int) -> list[float]:
    """Seconds of each call, in turns; a call is told the number of the turn."""
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, seconds in zip(calls, taken, strict=True):
            started = clock()
            call(turn)
            seconds.append(clock() - started)
    return [sorted(seconds[1:])[len(seconds) // 10] for seconds in taken]  # the first turn warms up


@dataclass(frozen=True)
class Decode:
    """A decode step's attention: `layers` layers are cycled."""

    batch: RaggedBatch
    pool: torch.Tensor
    query: torch.Tensor
    layers: int
    layer_bytes: int

    @classmethod
    def of(cls, sequences: int, context: int, kv_dtype: torch.dtype) -> "Decode":
        blocks = -(-context // BLOCK)
        layer_bytes = sequences * context * 2 * KV_HEADS * HEAD_DIM * kv_dtype.itemsize
        layers = max(1, min(30, -(-OUT_OF_CACHE // layer_bytes)))
        pool = kernels.allocate_pool(PoolShape(sequences * blocks, layers, KV_HEADS, BLOCK, HEAD_DIM, kv_dtype))
        pool.normal_()
        tables = (torch.randperm(sequences * blocks) + 1).to(torch.int32).view(sequences, blocks)
        batch = RaggedBatch.of([1] * sequences, [context] * sequences, tables)
        return cls(batch, pool, torch.randn(sequences, HEADS, HEAD_DIM), layers, layer_bytes)

    def ours(self, turn: int) -> torch.Tensor:
        return kernels.paged_attention(self.query, self.pool, turn % self.layers, self.batch, scale=SCALE)

    def plain(self, turn: int) -> torch.Tensor:
        query = self.query.to(self.pool.dtype)
        return reference.paged_attention(query, self.pool, turn % self.layers, self.batch, scale=SCALE)

    def read(self, turn: int) -> torch.Tensor:
        """As many bytes, contiguous, from the same pool."""
        floats = self.pool.view(-1).view(torch.float32)
        count = self.layer_bytes // 4
        start = turn % self.layers * count
        return floats[start : start + count].sum()


def decode_line(sequences: int, context: int, kv_dtype: torch.dtype, repeats: int) -> None:
    case = Decode.of(sequences, context, kv_dtype)
    ours, plain, read = tenth_percentiles((case.ours, case.plain, case.read), repeats)
    print(
        f"  {str(kv_dtype)[6:]:9} {sequences:3} x {context:5}  {ours * 1e6:9.0f} us  "
        f"{case.layer_bytes / ours / 1e9:5.1f} GB/s  read bound {read * 1e6:8.0f} us ({read / ours:4.0%} of it)  "
        f"torch {plain * 1e6:9.0f} us ({plain / ours:4.1f}x)"
    )


def product_line(name: str, rows: int, repeats: int) -> None:
    """One projection of all layers of the demo model."""
    out_features, in_features = PROJECTIONS[name]
    copies = -(-OUT_OF_CACHE // (out_features * in_features * 4))
    plain = [torch.randn(out_features, in_features) for _ in range(min(copies, 30))]
    packed = [kernels.pack_linear(weight) for weight in plain]
    values = torch.randn(rows, in_features)
    ours, torchs = tenth_percentiles(
        (
            lambda turn: kernels.linear(values, packed[turn % len(packed)]),
            lambda turn: torch_linear(values, plain[turn % len(plain)]),
        ),
        repeats,
    )
    flops = 2 * rows * out_features * in_features
    print(
        f"  {name:14} {rows:4} rows  {ours * 1e6:8.0f} us  {flops / ours / 1e9:6.1f} GFLOP/s "
        f"{out_features * in_features * 4 / ours / 1e9:5.1f} GB/s  torch {torchs * 1e6:8.0f} us ({torchs / ours:4.1f}x)"
    )


def prefill_line(tokens: int, kv_dtype: torch.dtype, repeats: int) -> None:
    blocks = -(-tokens // BLOCK)
    pool = kernels.allocate_pool(PoolShape(blocks, 1, KV_HEADS, BLOCK, HEAD_DIM, kv_dtype)).normal_()
    batch = RaggedBatch.of([tokens], [tokens], (torch.randperm(blocks) + 1).to(torch.int32)[None])
    query = torch.randn(tokens, HEADS, HEAD_DIM)
    sides = (torch.randn(heads, tokens, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    contiguous_query, keys, values = (side.to(kv_dtype)[None] for side in sides)
    weight, wide = torch.randn(576, 576), torch.randn(tokens, 576)
    packed = kernels.pack_linear(weight)
    ours, plain, *products = tenth_percentiles(
        (
            lambda _: kernels.paged_attention(query, pool, 0, batch, scale=SCALE),
            lambda _: scaled_dot_product_attention(contiguous_query, keys, values, is_causal=True, enable_gqa=True),
            lambda _: kernels.linear(wide, packed),
            lambda _: torch_linear(wide, weight),
        ),
        repeats,
    )
    bound = 2 * tokens * 576 * 576 / min(products)
    flops = 4 * HEADS * HEAD_DIM * tokens * (tokens + 1) // 2  # q.k and p.v, the visible half
    print(
        f"  {str(kv_dtype)[6:]:9} {tokens} tokens  {ours * 1e3:7.1f} ms  {flops / ours / 1e9:6.1f} GFLOP/s "
        f"({flops / ours / bound:4.0%} of {bound / 1e9:.0f}, a large product's)  "
        f"torch SDPA, contiguous KV {plain * 1e3:7.1f} ms ({plain / ours:4.1f}x)"
    )


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd") if name in flags.split()]
    return f"{model}, {os.cpu_count()} CPUs, {', '.join(known)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="the main cells only")
    parser.add_argument("--cpu-time", action="store_true", help="processor time per thread instead of elapsed time")
    options = parser.parse_args()
    if options.cpu_time:
        global clock
        clock = processor_time
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    # A huge page must be had for the probe to be a bound: see that the machine gives some.
    huge_zeros(OUT_OF_CACHE).fill_(1)
    print(
        f"{processor()}; torch {torch.__version__}, {options.threads} threads; load {os.getloadavg()[0]:.1f}; "
        f"{'processor time per thread' if options.cpu_time else 'elapsed time'}"
    )
    print(kernels.backend())

    print("decode attention, one layer, 9 query and 3 KV heads of 64, block 16")
    for dtype in (torch.float32, torch.bfloat16):
        decode_line(16, 512, dtype, options.repeats)
    if not options.quick:
        for dtype in (torch.float32, torch.bfloat16):
            for sequences in (1, 4, 16, 32):
                for context in (64, 512, 2048, 8192):
                    decode_line(sequences, context, dtype, max(5, options.repeats // 3))

    print("products with weights, float32")
    for rows in (1, 2, 4, 8, 16, 32, 128, 512) if not options.quick else (1, 16, 512):
        for name in PROJECTIONS:
            product_line(name, rows, options.repeats)

    print("prefill attention, causal")
    for dtype in (torch.float32, torch.bfloat16):
        prefill_line(1536, dtype, options.repeats)


if __name__ == "__main__":
    main()
