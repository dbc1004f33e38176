"""Every operation against float64 or bit for bit, on fresh random inputs, with memory poisoned before each call."""

import math

import torch
from poisoned_steps import LAYER, PagedCase, attended, paged_case, relative_error
from table import Table

import kernels
from kernels import PoolShape, RaggedBatch, cuda

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
MIXED = [(1, 700), (1, 1), (33, 100), (1, 257), (5, 5)]
SMALL = [(1, 90), (1, 1), (9, 40)]


def poison(device: str) -> None:
    """Fills what torch's allocator will hand out next with NaN: an output nobody wrote shows."""
    blocks = [torch.full((2**size // 4,), math.nan, device=device) for size in range(9, 25) for _ in range(2)]
    del blocks


def attend(case: PagedCase, **options: object) -> torch.Tensor:
    return kernels.paged_attention(
        case.query, case.pool, LAYER, case.batch, scale=case.scale, kv_scales=case.kv_scales, **options
    )


VARIANTS = [{}, {"window": 50}, {"soft_cap": 20.0, "sinks": True}]
SHAPES = [((32, 8), 128, 16), ((9, 3), 64, 16), ((12, 12), 80, 16), ((8, 1), 256, 7), ((28, 4), 96, 32)]


def attention(table: Table, device: str, seed: int) -> None:
    """Every combination would be compiled for minutes: bf16 sees all shapes and variants, the others some of each."""
    formats = [(d, d) for d in BOUNDS] + [(torch.bfloat16, f) for f in (torch.float8_e4m3fn, torch.float8_e5m2)]
    for turn, (dtype, kv_dtype) in enumerate(formats):
        name = f"attention {str(dtype)[6:]} over {str(kv_dtype)[6:]}"
        if not table.has_time_for(name, 20):
            continue
        shapes = [SHAPES[1]] if device == "cpu" else SHAPES if kv_dtype == torch.bfloat16 else SHAPES[:3]
        errors, moving = [], 0
        for number, shape in enumerate(shapes):
            everything = kv_dtype == torch.bfloat16 and number == 0
            for variant in VARIANTS if everything else [VARIANTS[(number + turn) % 3]]:
                error, moves = _attention_case(shape, dtype, kv_dtype, variant, device, seed + number)
                errors.append(error)
                moving += moves
        table.bounded("float64", name, max(errors, key=lambda e: math.inf if math.isnan(e) else e), BOUNDS[dtype])
        table.bounded("same bits", name, moving, 0)


def _attention_case(
    shape: tuple[tuple[int, int], int, int],
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    variant: dict[str, object],
    device: str,
    seed: int,
) -> tuple[float, bool]:
    """The error against float64, and whether it moves between calls with the same inputs, which would be a race."""
    heads, head_dim, block_size = shape
    sequences = MIXED if device == "cuda" else SMALL
    options = {name: value for name, value in variant.items() if name != "sinks"}
    sinks = torch.linspace(-1, 3, heads[0]) if "sinks" in variant else None
    case = paged_case(
        sequences,
        heads,
        head_dim,
        block_size=block_size,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
        shared_blocks=1,
        seed=seed,
    )
    on_device = options | {"sinks": None if sinks is None else sinks.to(device)}
    poison(device)
    actual = attend(case, **on_device)
    repeats = 3 if device == "cuda" else 0
    moves = any(not torch.equal(actual, attend(case, **on_device)) for _ in range(repeats))
    return relative_error(actual, attended(case, sinks=sinks, **options)), moves


def writes(table: Table, device: str) -> None:
    """Rotation, K and V against float64; every slot not written keeps its NaN."""
    for dtype in BOUNDS:
        shape = PoolShape(40, 2, 8, 16, 128, dtype)
        pool = torch.full(shape.dims, math.nan, dtype=dtype, device=device)
        fused = torch.randn(100, 48, 128, device=device).to(dtype)
        before = fused.double().cpu()
        query, key, value = fused.split((32, 8, 8), 1)
        angles = torch.randn(100, 64, dtype=torch.float64)
        slots = torch.randperm(40 * 16)[:100] + 16
        slots[7] = -1
        turn = (angles.cos().float().to(device), angles.sin().float().to(device))
        kernels.write_rotated_kv(pool, 1, query, key, value, slots.to(device), *turn)
        a, b = before[:, :40].split(64, -1)
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
        rotated = torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)
        slotted = pool.cpu().permute(0, 4, 1, 2, 3, 5).reshape(-1, 2, 2, 8, 128)
        written = torch.arange(100) != 7
        error = max(
            relative_error(query, rotated[:, :32]),
            relative_error(slotted[slots[written], 1, 0], rotated[written, 32:]),
            relative_error(slotted[slots[written], 1, 1], before[written, 40:]),
        )
        table.bounded("float64", f"rotate and write {str(dtype)[6:]}", error, BOUNDS[dtype])
        untouched = torch.ones(len(slotted), dtype=torch.bool)
        untouched[slots[written]] = False
        strays = (~slotted[untouched].isnan()).sum() + (~slotted[:, 0].isnan()).sum()
        table.bounded("poison", f"slots nobody asked for, {str(dtype)[6:]}", float(strays), 0)


def moves(table: Table, device: str) -> None:
    """Copies, swaps and zeroing, bit for bit, on random bytes."""
    for shape in (PoolShape(60, 4, 8, 16, 128, torch.bfloat16), PoolShape(60, 1, 1, 7, 3, torch.float16)):
        size = (shape.num_blocks + 1) * shape.block_bytes
        expected = torch.randint(0, 256, (size,), dtype=torch.uint8).view(shape.num_blocks + 1, -1)
        pool = expected.to(device).view(-1).view(shape.dtype).view(shape.dims)
        host = kernels.allocate_host_pool(shape, 30, pinned=device == "cuda")
        order = (torch.randperm(60) + 1).tolist()
        kernels.copy_blocks(pool, order[:20], order[20:40])
        expected[order[20:40]] = expected[order[:20]]
        kernels.swap_out(pool, host, order[:30], list(range(30)))
        kernels.swap_in(pool, host, list(range(30)), order[30:])
        expected[order[30:]] = expected[order[:30]]
        kernels.zero_blocks(pool, order[:5])
        expected[order[:5]] = 0
        different = (pool.cpu().view(torch.uint8).view(shape.num_blocks + 1, -1) != expected).sum()
        table.bounded("bits", f"copies, swaps, zeroing of {shape.block_bytes} bytes", float(different), 0)


def waits(table: Table, device: str) -> None:
    """What is called in every step queues its work: torch raises where a call would wait for the device."""
    cases = [paged_case(MIXED, (32, 8), 128, dtype=torch.bfloat16, device=device, seed=seed) for seed in range(2)]
    rows = torch.randn(4, 8, 128, device=device).bfloat16()
    slots = torch.arange(16, 20, device=device)

    def step(case: PagedCase) -> None:
        attend(case)
        kernels.write_kv(case.pool, LAYER, rows, rows, slots)
        kernels.zero_blocks(case.pool, [1, 2])
        if cuda.unavailable() is None:  # torch's own indexing waits
            kernels.copy_blocks(case.pool, [1], [3])

    step(cases[0])  # what is compiled and loaded at first sight may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(cases[1])
        waited = 0
    except RuntimeError as error:
        print(error)
        waited = 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
    table.bounded("waits", "attention, writes, zeroing, copies", waited, 0)


def large_pool(table: Table, device: str) -> None:
    """The last blocks of a pool beyond 2**31 elements give the bits that they give in a small pool."""
    small = paged_case([(1, 400), (50, 400)], (32, 8), 128, dtype=torch.bfloat16, device=device)
    blocks = small.batch.block_tables.shape[1] * 2
    rows = 2**31 // small.pool[0].numel() + 1 + blocks
    pool = torch.full((rows, *small.pool.shape[1:]), math.nan, dtype=torch.bfloat16, device=device)
    far = torch.arange(rows - blocks, rows, device=device)
    pool[far] = small.pool[small.batch.block_tables.flatten().long()]
    tables = far.int().view(2, -1)
    batch = RaggedBatch.of([1, 50], [400, 400], tables, device)
    different = kernels.paged_attention(small.query, pool, LAYER, batch, scale=small.scale) != attend(small)
    table.bounded("bits", f"attention in a pool of {pool.numel():.2e} elements", float(different.sum()), 0)


def captured_graph(table: Table, device: str) -> None:
    """A decode batch captured once, replayed with longer contexts and padding rows."""
    case = paged_case([(1, 900), (1, 300), (1, 1), (1, 64)], (32, 8), 128, dtype=torch.bfloat16, device=device)
    planned = RaggedBatch(
        case.batch.query_starts, case.batch.context_lengths, case.batch.block_tables, (1,) * 4, (512, 300, 1, 64)
    )
    attend(case)
    kernels.paged_attention(case.query, case.pool, LAYER, planned, scale=case.scale)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = kernels.paged_attention(case.query, case.pool, LAYER, planned, scale=case.scale)
    expected = attended(case)
    output.fill_(math.nan)
    graph.replay()
    table.bounded("float64", "captured graph, contexts outgrown", relative_error(output, expected), 1e-2)
    planned.context_lengths[2:] = 0
    planned.block_tables[2:] = 0
    output.fill_(math.nan)
    graph.replay()
    table.bounded("float64", "captured graph, two rows left", relative_error(output[:2], expected[:2]), 1e-2)
    table.bounded("bits", "captured graph, padding rows are zero", float((output[2:] != 0).sum()), 0)
