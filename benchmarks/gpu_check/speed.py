"""How near the device's own limits: decode in bytes, prefill in operations, moves in bytes.

The limits are measured in the same run: a device-to-device copy (bytes read and written) and a large bf16 product.
Inputs rotate over the layers of a pool several times the L2 cache. Times are medians over CUDA events.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from table import Table
from torch.nn.functional import scaled_dot_product_attention

import kernels
from kernels import PoolShape, RaggedBatch


@dataclass(frozen=True, slots=True)
class Limits:
    bytes_per_second: float
    operations_per_second: float
    pinned_bytes_per_second: float


def seconds(call: Callable[[], object], milliseconds: int = 100) -> float:
    from triton.testing import do_bench

    return float(do_bench(call, warmup=25, rep=milliseconds, return_mode="median")) / 1e3


def limits(table: Table) -> Limits:
    whole = torch.randint(0, 255, (2, 2**32), dtype=torch.uint8, device="cuda")
    copied = whole.nbytes / seconds(lambda: whole[0].copy_(whole[1]))
    a, b = torch.randn(2, 8192, 8192, device="cuda").bfloat16()
    multiplied = 2 * 8192**3 / seconds(lambda: a @ b)
    pinned = torch.empty(2**29, dtype=torch.uint8).pin_memory()
    linked = pinned.nbytes / seconds(lambda: pinned.copy_(whole[0, : 2**29], non_blocking=True))
    table.measured("limit", "device copy", copied / 1e12, "TB/s", "bytes read and written")
    table.measured("limit", "bf16 product 8192", multiplied / 1e12, "TFLOP/s", "random data")
    table.measured("limit", "device to pinned host", linked / 1e9, "GB/s", "512 MiB in one copy")
    return Limits(copied, multiplied, linked)


def random_step(
    sequences: list[tuple[int, int]], heads: tuple[int, int], head_dim: int, layers: int, kv_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, RaggedBatch]:
    blocks = sum(-(-context // 16) for _, context in sequences)
    shape = PoolShape(blocks, layers, heads[1], 16, head_dim, kv_dtype)
    pool = torch.empty(shape.dims, dtype=kv_dtype, device="cuda")
    for block in pool:
        block.copy_(torch.randn(block.shape, device="cuda", dtype=torch.bfloat16))
    order = (torch.randperm(blocks) + 1).tolist()
    tables = [[order.pop() for _ in range(-(-context // 16))] for _, context in sequences]
    queries, contexts = zip(*sequences, strict=True)
    batch = RaggedBatch.of(queries, contexts, tables, "cuda")
    return torch.randn(sum(queries), heads[0], head_dim, device="cuda").bfloat16(), pool, batch


def decode(table: Table, limit: Limits) -> None:
    """Bytes are K and V of every context, read once; a graph of one call per layer is replayed."""
    for name, batch_size, context, heads, head_dim, kv_dtype in (
        ("1 x 32768, 32/8 x 128", 1, 32768, (32, 8), 128, torch.bfloat16),
        ("16 x 8192, 32/8 x 128", 16, 8192, (32, 8), 128, torch.bfloat16),
        ("64 x 2048, 32/8 x 128", 64, 2048, (32, 8), 128, torch.bfloat16),
        ("64 x 2048, 32/8 x 128, e4m3", 64, 2048, (32, 8), 128, torch.float8_e4m3fn),
        ("64 x 2048, 9/3 x 64", 64, 2048, (9, 3), 64, torch.bfloat16),
    ):
        layers = 4
        query, pool, batch = random_step([(1, context)] * batch_size, heads, head_dim, layers, kv_dtype)
        scales = torch.ones(2, heads[1], device="cuda") if kv_dtype.itemsize == 1 else None

        def step(query=query, pool=pool, batch=batch, scales=scales, layers=layers) -> None:
            for layer in range(layers):
                kernels.paged_attention(query, pool, layer, batch, scale=0.1, kv_scales=scales)

        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        took = seconds(graph.replay) / layers
        moved = batch_size * context * 2 * heads[1] * head_dim * kv_dtype.itemsize
        rate = moved / took
        share = f"{rate / limit.bytes_per_second:.0%} of a device copy, {took * 1e6:.0f} us a layer"
        table.measured("decode", name, rate / 1e12, "TB/s", share)
        if kv_dtype == torch.bfloat16:
            k, v = torch.randn(2, batch_size, heads[1], context, head_dim, device="cuda").bfloat16()
            q = query.view(batch_size, heads[0], 1, head_dim)
            other = seconds(lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v, enable_gqa=True))
            table.measured("decode", "  torch SDPA, contiguous KV", moved / other / 1e12, "TB/s", "")


def prefill(table: Table, limit: Limits) -> None:
    """Operations: 4 * head_dim per query head and visible key."""
    for name, sequences, head_dim in (
        ("8192", [(8192, 8192)], 128),
        ("4 x 2048 over a prefix of 6144", [(2048, 8192)] * 4, 128),
        ("8192, head dim 64", [(8192, 8192)], 64),
    ):
        heads = (32, 8)
        query, pool, batch = random_step(sequences, heads, head_dim, 1, torch.bfloat16)
        took = seconds(lambda q=query, p=pool, b=batch: kernels.paged_attention(q, p, 0, b, scale=0.1))
        pairs = sum(q * (c - q) + q * (q + 1) // 2 for q, c in sequences)
        rate = 4 * head_dim * heads[0] * pairs / took
        share = f"{rate / limit.operations_per_second:.0%} of the product"
        table.measured("prefill", name, rate / 1e12, "TFLOP/s", share)
        if len(sequences) == 1:
            q, k, v = (
                torch.randn(1, n, 8192, head_dim, device="cuda").bfloat16() for n in (heads[0], heads[1], heads[1])
            )
            other = seconds(
                lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            )
            rate = 4 * head_dim * heads[0] * pairs / other
            table.measured("prefill", "  torch SDPA, contiguous KV", rate / 1e12, "TFLOP/s", "")


def moves(table: Table, limit: Limits) -> None:
    for name, shape in (
        ("2 MiB", PoolShape(1024, 32, 8, 16, 128, torch.bfloat16)),
        ("16 KiB", PoolShape(1024, 2, 2, 16, 64, torch.bfloat16)),
    ):
        pool = kernels.allocate_pool(shape, "cuda")
        host = kernels.allocate_host_pool(shape, 256, pinned=True)
        order = (torch.randperm(1024) + 1).tolist()
        moved = 256 * shape.block_bytes
        took = seconds(lambda p=pool, o=order: kernels.copy_blocks(p, o[:256], o[256:512]))
        share = f"{2 * moved / took / limit.bytes_per_second:.0%} of a device copy"
        table.measured("moves", f"256 copies of {name}", 2 * moved / took / 1e9, "GB/s", share)
        out = seconds(lambda p=pool, h=host, o=order: kernels.swap_out(p, h, o[:256], list(range(256))))
        back = seconds(lambda p=pool, h=host, o=order: kernels.swap_in(p, h, list(range(256)), o[:256]))
        for way, took in (("out", out), ("in", back)):
            share = f"{moved / took / limit.pinned_bytes_per_second:.0%} of one large copy"
            table.measured("moves", f"256 swaps {way} of {name}", moved / took / 1e9, "GB/s", share)
    pool = kernels.allocate_pool(PoolShape(1024, 1, 8, 16, 128, torch.bfloat16), "cuda")
    query, key, value = torch.randn(8192, 48, 128, device="cuda").bfloat16().split((32, 8, 8), 1)
    turn, slots = torch.randn(2, 8192, 64, device="cuda"), torch.randperm(8192, device="cuda") + 16
    took = seconds(lambda: kernels.write_rotated_kv(pool, 0, query, key, value, slots, *turn))
    moved = 2 * 8192 * 48 * 128 * 2
    share = f"{moved / took / limit.bytes_per_second:.0%} of a device copy"
    table.measured("moves", "rotate and write 8192 tokens", moved / took / 1e12, "TB/s", share)
