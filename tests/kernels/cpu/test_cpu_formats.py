"""Pools of half and of quarter precision: what the library keeps and reads back, code by code and against torch."""

import pytest
import torch
from paged_cases import LAYER, PagedCase, paged_case, relative_error

from kernels import PoolShape, RaggedBatch, cpu, reference

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
NARROW = [torch.float16, torch.bfloat16, E4M3, E5M2]
DIM = 32


def integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8 if tensor.dtype.itemsize == 1 else torch.int16)


def scales_for(dtype: torch.dtype, kv_heads: int) -> torch.Tensor | None:
    return torch.ones(2, kv_heads) if dtype.itemsize == 1 else None


@pytest.fixture
def library_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is handed to the reference."""
    for name in ("paged_attention", "write_kv", "write_rotated_kv"):
        monkeypatch.delattr(reference, name)


@pytest.mark.unit
@pytest.mark.usefixtures("library_only")
@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("dtype", NARROW)
def test_every_code_is_read_as_torch_reads_it(dtype: torch.dtype, tokens: int) -> None:
    """Where all keys are equal and all values too, attention gives that value: 2^8 or 2^16 codes, 32 a row.

    One token takes the decode path, two are a chunk, whose last sees both keys. V's scale is 2, which is exact.
    """
    codes = 2 ** (8 * dtype.itemsize)
    every = torch.arange(codes).to(torch.uint8 if dtype.itemsize == 1 else torch.int32)
    values = (every if dtype.itemsize == 1 else every.to(torch.int16)).view(dtype).view(-1, DIM)
    sequences = len(values)
    pool = cpu.allocate_pool(PoolShape(sequences, 1, 1, tokens, DIM, dtype))
    integers(pool)[1:, 0, 1, 0] = integers(values)[:, None].expand(-1, tokens, -1)
    tables = torch.arange(1, sequences + 1, dtype=torch.int32)[:, None]
    batch = RaggedBatch.of([tokens] * sequences, [tokens] * sequences, tables)
    scales = None if dtype.itemsize > 1 else torch.tensor([[1.0], [2.0]])
    query = torch.randn(sequences * tokens, 1, DIM)
    read = cpu.paged_attention(query, pool, 0, batch, scale=1.0, kv_scales=scales)[tokens - 1 :: tokens, 0]
    expected = values.float() * (1 if scales is None else 2)
    assert torch.equal(read.isnan(), expected.isnan())
    held = expected.abs() <= torch.finfo(torch.float32).max / tokens  # sums are divided by the weights at the end
    assert torch.equal(read[held], expected[held])


@pytest.mark.unit
@pytest.mark.usefixtures("library_only")
@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_written_has_the_bits_that_torch_rounds_to(dtype: torch.dtype) -> None:
    """Random floats of every exponent, the numbers half way between neighbouring codes, and NaN; 8-bit pools hold what
    is too large to their range, as the contract says."""
    drawn = torch.randint(-(2**31), 2**31, (20_000,), dtype=torch.int64).to(torch.int32).view(torch.float32)
    every = torch.arange(2 ** (8 * dtype.itemsize)).to(torch.uint8 if dtype.itemsize == 1 else torch.int32)
    codes = (every if dtype.itemsize == 1 else every.to(torch.int16)).view(dtype).float()
    codes = codes[codes.isfinite()].sort().values
    given = torch.cat((drawn[drawn.isfinite()], (codes[1:] + codes[:-1]) / 2, codes, torch.tensor([torch.nan])))
    given = torch.nn.functional.pad(given, (0, -len(given) % DIM)).view(-1, 1, DIM)
    tokens = len(given)
    pool = cpu.allocate_pool(PoolShape(1, 1, 1, tokens, DIM, dtype))
    slots = torch.arange(tokens, 2 * tokens)
    cpu.write_kv(pool, 0, given, given, slots, kv_scales=scales_for(dtype, 1))
    largest = torch.finfo(dtype).max
    rounded = (given.clamp(-largest, largest) if dtype.itemsize == 1 else given).to(dtype)[:, 0]
    nan = rounded.float().isnan()
    for side in pool[1, 0, :, 0]:
        assert torch.equal(side.float().isnan(), nan)
        assert torch.equal(integers(side)[~nan], integers(rounded)[~nan])


@pytest.mark.unit
@pytest.mark.usefixtures("library_only")
@pytest.mark.parametrize(("dtype", "bound"), [(E4M3, 2**-4), (E5M2, 2**-3)])
@pytest.mark.parametrize("query_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_over_a_pool_of_8_bits(
    query_dtype: torch.dtype, dtype: torch.dtype, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K and V are what is stored times the scale of their head; m bits of mantissa are off by 2^-(m + 1) of a value."""
    monkeypatch.undo()
    case = paged_case([(1, 333), (9, 20), (1, 1)], 16, (6, 2), 80, query_dtype=query_dtype)
    scales = torch.tensor([[0.5, 0.25], [2.0, 1.0]])
    pool = cpu.allocate_pool(PoolShape(case.pool.shape[0] - 1, 2, 2, 16, 80, dtype))
    integers(pool).fill_(0x7F)  # NaN in either format
    stored = []
    for own, table in zip(case.history, case.batch.block_tables.tolist(), strict=True):
        slots = torch.tensor([table[p // 16] * 16 + p % 16 for p in range(own.shape[1])])
        cpu.write_kv(pool, LAYER, own[0], own[1], slots, kv_scales=scales)
        wide = scales[:, None, :, None]
        stored.append((own / wide).to(dtype).float() * wide)
    actual = cpu.paged_attention(case.query, pool, LAYER, case.batch, scale=0.1, kv_scales=scales)
    rounding = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[query_dtype]
    exact = PagedCase(case.query, pool, case.batch, stored).exact(0.1)
    assert relative_error(actual, exact) < rounding
    assert relative_error(actual, case.exact(0.1)) < bound + rounding


@pytest.mark.unit
@pytest.mark.parametrize("dtype", NARROW)
def test_rotated_keys_are_rounded_once(dtype: torch.dtype) -> None:
    """From float32 the reference rotates in float32 as well: equal but for the last bit, where a product was fused."""
    tokens, heads = 5, 2
    query, key, value = (torch.randn(tokens, count, DIM) for count in (4, heads, heads))
    angles = torch.rand(tokens, DIM // 2) * 6
    slots = torch.arange(16, 16 + tokens)
    shape = PoolShape(2, 1, heads, 16, DIM, dtype)
    scales = None if dtype.itemsize > 1 else torch.tensor([[0.5, 3.0], [2.0, 0.7]])
    pools = []
    for backend in (cpu, reference):
        pools.append(cpu.allocate_pool(shape))
        backend.write_rotated_kv(
            pools[-1], 0, query.clone(), key, value, slots, angles.cos(), angles.sin(), kv_scales=scales
        )
    ours, theirs = (integers(pool).int() for pool in pools)
    assert torch.equal(ours[:, 0, 1], theirs[:, 0, 1])
    assert (ours - theirs).abs().max() <= 1
    assert (ours != theirs).sum() <= ours.count_nonzero() // 50
