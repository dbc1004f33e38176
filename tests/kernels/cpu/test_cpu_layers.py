"""Norms, gates, products and writes in C++ and in plain torch, both against float64; selection exactly."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import relative_error
from torch.nn import functional

from kernels import Activation, PoolShape, Quantization, cpu, reference
from kernels.quantize import quantize

BACKENDS = [cpu, reference]
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = st.sampled_from(list(BOUNDS))


def normal(*dims: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 70), width=st.sampled_from([1, 7, 64, 576, 577, 4096]), dtype=DTYPES, adds=st.booleans())
def test_add_rms_norm(rows: int, width: int, dtype: torch.dtype, adds: bool) -> None:
    hidden, weight = normal(rows, width, dtype=dtype), normal(width, dtype=dtype, seed=1)
    delta = normal(rows, width, dtype=dtype, seed=2) if adds else None
    total = (hidden.double() + delta.double()).to(dtype) if delta is not None else hidden
    wide = total.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    for backend in BACKENDS:
        mine = hidden.clone()
        assert relative_error(backend.add_rms_norm(mine, delta, weight, 1e-5), exact) < BOUNDS[dtype]
        assert torch.equal(mine, total)


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 40), width=st.sampled_from([1, 9, 160, 1536]), dtype=DTYPES, spread=st.sampled_from([1, 60]))
def test_silu_mul(rows: int, width: int, dtype: torch.dtype, spread: int) -> None:
    gate_up = normal(rows, 2 * width, dtype=dtype) * spread
    gate, up = gate_up.double().chunk(2, -1)
    for backend in BACKENDS:
        assert relative_error(backend.silu_mul(gate_up), functional.silu(gate) * up) < BOUNDS[dtype]


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 20), st.sampled_from([95, 96, 97, 300])),
    out=st.sampled_from([1, 15, 16, 17, 96, 211, 576]),
    inner=st.sampled_from([1, 64, 255, 256, 257, 1536]),
    dtypes=st.sampled_from(
        [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)]
    ),
    with_bias=st.booleans(),
    gated=st.booleans(),
    activation=st.sampled_from(["silu", "gelu_tanh"]),
)
def test_linear(
    rows: int,
    out: int,
    inner: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    with_bias: bool,
    gated: bool,
    activation: Activation,
) -> None:
    value_dtype, weight_dtype = dtypes
    width = 2 * out if gated else out
    values = normal(rows, inner, dtype=value_dtype) * inner**-0.5
    weight = normal(width, inner, dtype=weight_dtype, seed=1)
    bias = normal(width, dtype=weight_dtype, seed=2) if with_bias else None
    exact = functional.linear(values.double(), weight.double(), None if bias is None else bias.double())
    if gated:
        gate, up = exact.chunk(2, -1)
        exact = (functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")) * up
    for backend in BACKENDS:
        packed = backend.pack_gated_linear(weight, bias, activation) if gated else backend.pack_linear(weight, bias)
        assert (packed.in_features, packed.out_features) == (inner, out)
        for wanted in (None, torch.float32):
            actual = backend.linear(values, packed, wanted)
            assert actual.dtype == (wanted or value_dtype)
            # One output among few may be tiny: the error is taken of the sum of magnitudes where the result cancels.
            scale = max(float(exact.abs().max()), 0.1)
            # The reference rounds the gate, its activation and the product in bfloat16.
            bound = BOUNDS[value_dtype] * (2 if backend is reference else 1)
            assert float((actual.double() - exact).abs().max()) / scale < bound


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 20), st.sampled_from([36, 37, 97])),
    out=st.sampled_from([1, 15, 16, 17, 100]),
    inner=st.sampled_from([1, 32, 33, 256, 288, 576]),
    dtypes=st.sampled_from(list(itertools.product(BOUNDS, BOUNDS))),
    quantization=st.sampled_from(["int8", "int4"]),
    gated=st.booleans(),
)
def test_quantised_products(
    rows: int, out: int, inner: int, dtypes: tuple[torch.dtype, torch.dtype], quantization: Quantization, gated: bool
) -> None:
    """Right for the rounded weights; 33 inputs are no whole groups, so that four bits become eight."""
    value_dtype, weight_dtype = dtypes
    values = normal(rows, inner, dtype=value_dtype) * inner**-0.5
    weight, bias = normal(2 * out, inner, dtype=weight_dtype, seed=1), normal(2 * out, seed=2)
    halves = [quantize(half, quantization).weight() for half in weight.chunk(2)]
    exact = functional.linear(values.double(), torch.cat(halves).double(), bias.double())
    if gated:
        exact = functional.silu(exact[:, :out]) * exact[:, out:]
        packed = cpu.pack_gated_linear(weight, bias, "silu", quantization)
    else:
        packed = cpu.pack_linear(weight, bias, quantization)
    actual = cpu.linear(values, packed)
    assert float((actual.double() - exact).abs().max()) / max(float(exact.abs().max()), 0.1) < BOUNDS[value_dtype]
    assert torch.equal(actual[: rows // 2 + 1], cpu.linear(values[: rows // 2 + 1], packed))
    if not gated:
        ids = torch.arange(2 * out).flip(0)
        looked_up = cpu.embedding(ids, packed)
        assert looked_up.dtype == torch.float32
        assert relative_error(looked_up, torch.cat(halves)[ids]) < 1e-6


@pytest.mark.unit
def test_what_quantisation_costs() -> None:
    """Normal weights: 8 bits are steps of 1 / 127 of the largest of a row, about 3.3 deviations, so an error of
    3.3 / 127 / sqrt(12) = 0.75 %; 4 bits are 15 steps over a group's range, about 4.1 deviations: 7.9 %."""
    weight, values = normal(512, 576), normal(64, 576, seed=1)
    exact = values.double() @ weight.double().T
    for quantization, low, high in (("int8", 0.006, 0.009), ("int4", 0.07, 0.085)):
        product = cpu.linear(values, cpu.pack_linear(weight, None, quantization))  # type: ignore[arg-type]
        assert low < float((product.double() - exact).norm() / exact.norm()) < high
    with pytest.raises(ValueError, match="known: int8, int4"):
        cpu.pack_linear(weight, None, "int3")  # type: ignore[arg-type]


@pytest.mark.unit
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_that_are_all_alike_are_kept(quantization: Quantization) -> None:
    """A range of zero has no steps to count."""
    for value in (0.0, 1.5):
        weight = torch.full((3, 64), value)
        assert relative_error(quantize(weight, quantization).weight() + 1, weight + 1) < 1e-6


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_product_has_the_same_bits_beside_any_others(dtype: torch.dtype, threads: int) -> None:
    """1 row, register tiles of every height and several row blocks: 300 = 4 blocks of at most 96 rows."""
    packed = cpu.pack_linear(normal(200, 600, dtype=dtype))
    values = normal(300, 600, dtype=dtype, seed=1)
    whole = cpu.linear(values, packed)
    for rows in (1, 2, 3, 5, 6, 7, 16, 97):
        assert torch.equal(cpu.linear(values[:rows], packed), whole[:rows])


@pytest.mark.property
@settings(max_examples=20, deadline=None)
@given(rows=st.sampled_from([5, 16, 37]), dtype=DTYPES, data=st.data())
def test_embedding_gives_back_the_rows(rows: int, dtype: torch.dtype, data: st.DataObject) -> None:
    weight = normal(rows, 24, dtype=dtype)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), max_size=9)), dtype=torch.int64)
    for backend in BACKENDS:
        packed = backend.pack_linear(weight)
        assert torch.equal(backend.embedding(ids, packed), weight[ids])
        assert torch.equal(backend.embedding(ids, packed, torch.float32), weight[ids].float())
        for outside in (-1, rows):
            with pytest.raises(IndexError):
                backend.embedding(torch.tensor([outside]), packed)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 5), width=st.integers(1, 300), data=st.data())
def test_selection_is_exact(rows: int, width: int, data: st.DataObject) -> None:
    """Few distinct values, so that ties are common; infinities and NaN, which counts as the largest."""
    some = st.sampled_from([0.0, 1.0, -1.0, 2.5, float("inf"), float("-inf"), float("nan")])
    few = data.draw(st.lists(some, min_size=1, max_size=7))
    choice = torch.randint(len(few), (rows, width), generator=torch.Generator().manual_seed(width))
    logits = torch.tensor(few)[choice]
    k = data.draw(st.integers(1, width))
    values, indices = reference.top_k(logits, k)
    ours, our_indices = cpu.top_k(logits, k)
    assert torch.equal(our_indices, indices)
    assert torch.equal(ours.nan_to_num(7.0), values.nan_to_num(7.0))
    assert torch.equal(cpu.argmax(logits), torch.argmax(logits, -1))


@pytest.mark.unit
def test_selection_over_a_vocabulary(threads: int) -> None:
    logits = normal(16, 49_152)
    assert torch.equal(cpu.argmax(logits), logits.argmax(-1))
    assert torch.equal(cpu.top_k(logits, 50)[0], torch.topk(logits, 50).values)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(
    head_dim=st.sampled_from([8, 20, 64, 80]),
    heads=st.sampled_from([(4, 2), (9, 3), (3, 1)]),
    block_size=st.sampled_from([1, 7, 16]),
    dtypes=st.sampled_from(
        [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)]
    ),
    partial=st.booleans(),
    tokens=st.integers(0, 12),
)
def test_write_rotated_kv(
    head_dim: int,
    heads: tuple[int, int],
    block_size: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    partial: bool,
    tokens: int,
) -> None:
    """Views of one fused projection, as the model has them; every slot that is not named keeps its bits."""
    dtype, kv_dtype = dtypes
    q_heads, kv_heads = heads
    half = head_dim // 4 if partial else head_dim // 2
    shape = PoolShape(12 // block_size + 2, 2, kv_heads, block_size, head_dim, kv_dtype)
    pool = normal(*shape.dims, dtype=kv_dtype, seed=3)
    qkv = normal(tokens, q_heads + 2 * kv_heads, head_dim, dtype=dtype)
    angles = torch.rand(tokens, half, generator=torch.Generator().manual_seed(1)) * 100
    cosine, sine = angles.cos(), angles.sin()
    slots = torch.randperm(shape.num_blocks * block_size, generator=torch.Generator().manual_seed(2))[:tokens]
    slots += block_size

    wide, turn = qkv.double(), (cosine.double()[:, None], sine.double()[:, None])
    a, b, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    rotated = torch.cat((a * turn[0] - b * turn[1], b * turn[0] + a * turn[1], rest), -1)
    expected = pool.double()
    for token, slot in enumerate(slots.tolist()):
        expected[slot // block_size, 1, 0, :, slot % block_size] = rotated[token, q_heads:-kv_heads]
        expected[slot // block_size, 1, 1, :, slot % block_size] = wide[token, -kv_heads:].to(kv_dtype).double()
    untouched = torch.ones(pool.shape, dtype=torch.bool)
    untouched[slots // block_size, 1, :, :, slots % block_size] = False
    for backend in BACKENDS:
        mine, fused = pool.clone(), qkv.clone()
        query, key, value = fused[:, :q_heads], fused[:, q_heads:-kv_heads], fused[:, -kv_heads:]
        backend.write_rotated_kv(mine, 1, query, key, value, slots, cosine, sine)
        assert torch.equal(mine[untouched], pool[untouched])
        assert torch.equal(fused[:, q_heads:], qkv[:, q_heads:])
        assert torch.equal(mine[slots // block_size, 1, 1, :, slots % block_size], value.to(kv_dtype))
        if tokens:
            assert relative_error(mine, expected) < BOUNDS[kv_dtype]
            assert relative_error(query, rotated[:, :q_heads]) < BOUNDS[dtype]


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(
    head_dim=st.sampled_from([4, 64]),
    kv_dtype=DTYPES,
    block_size=st.sampled_from([1, 5, 16]),
    tokens=st.integers(0, 10),
)
def test_write_kv_is_exact(head_dim: int, kv_dtype: torch.dtype, block_size: int, tokens: int) -> None:
    shape = PoolShape(10 // block_size + 2, 2, 3, block_size, head_dim, kv_dtype)
    pool = normal(*shape.dims, dtype=kv_dtype)
    key, value = normal(tokens, 3, head_dim, seed=1), normal(tokens, 3, head_dim, seed=2)
    slots = torch.randperm((shape.num_blocks + 1) * block_size, generator=torch.Generator().manual_seed(2))[:tokens]
    pools = [pool.clone(), pool.clone()]
    for backend, mine in zip(BACKENDS, pools, strict=True):
        backend.write_kv(mine, 1, key, value, slots)
    assert torch.equal(*pools)


@pytest.mark.unit
@pytest.mark.parametrize("backend", BACKENDS, ids=["cpu", "reference"])
def test_a_slot_outside_the_pool_writes_nothing(backend: object) -> None:
    pool = normal(*PoolShape(2, 1, 2, 4, 8, torch.float32).dims)
    before, query, key = pool.clone(), normal(2, 4, 8), normal(2, 2, 8)
    asked = query.clone()
    turn = torch.ones(2, 4)
    for outside in (3 * 4, -1):
        slots = torch.tensor([4, outside])
        with pytest.raises(IndexError):
            backend.write_rotated_kv(pool, 0, query, key, key, slots, turn, turn)  # type: ignore[attr-defined]
        assert torch.equal(pool, before)
        assert torch.equal(query, asked)
