"""KV writes, alone and fused with rotary embeddings, and zeroing, in Triton, interpreted."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import PoolShape, allocate_host_pool
from kernels.triton import copy_blocks, write_kv, write_rotated_kv, zero_blocks

pytestmark = pytest.mark.interpret

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def poisoned(shape: PoolShape) -> torch.Tensor:
    return torch.full(shape.dims, math.nan).to(shape.dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def place(pool: torch.Tensor, layer: int, kv: int, slot: int, rows: torch.Tensor) -> None:
    """Writes one token's [kv_heads, head_dim] as stored, head by head."""
    block, offset = divmod(slot, pool.shape[4])
    for head, row in enumerate(rows):
        pool[block, layer, kv, head, offset] = row


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_writes_touch_their_slots_only(data: st.DataObject) -> None:
    """Bit for bit: what was written, and NaN everywhere else. Slots outside the pool write nothing."""
    block_size = data.draw(st.sampled_from([1, 5, 16]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    kv_heads, head_dim = data.draw(st.sampled_from([1, 3, 10])), data.draw(st.sampled_from([32, 40, 80, 128]))
    shape = PoolShape(4, 2, kv_heads, block_size, head_dim, dtype)
    num_slots = 5 * block_size
    inside = st.integers(0, num_slots - 1)
    outside = st.sampled_from([-1, -num_slots, num_slots, num_slots + 7])
    slots = data.draw(st.lists(inside, unique=True, max_size=6)) + data.draw(st.lists(outside, max_size=2))
    layer = data.draw(st.integers(0, 1))
    # A view of fused projections: a query head before, K, V, and a head behind.
    fused = torch.randn(len(slots), 2 + 2 * kv_heads, head_dim).to(dtype)
    key, value = fused[:, 1 : 1 + kv_heads], fused[:, 1 + kv_heads : -1]
    pool, expected = poisoned(shape), poisoned(shape)
    for token, slot in enumerate(slots):
        if 0 <= slot < num_slots:
            place(expected, layer, 0, slot, key[token])
            place(expected, layer, 1, slot, value[token])
    write_kv(pool, layer, key, value, torch.tensor(slots, dtype=torch.int64))
    assert torch.equal(bits(pool), bits(expected))


def test_b84_padding_rows_write_nothing() -> None:
    """A batch of 3 padded to 8 over a full pool: only the 3 target slots change."""
    pool = torch.randn(PoolShape(4, 1, 2, 4, 32, torch.float32).dims)
    before = pool.clone()
    slots = torch.tensor([7, 12, 19, -1, -1, -1, -1, -1])
    key, value = torch.randn(2, 8, 2, 32)
    write_kv(pool, 0, key, value, slots)
    changed = (pool != before).any(-1).any(2).any(1).nonzero()  # [block, head, offset] of K or V
    assert {(int(block) * 4 + int(offset)) for block, _, offset in changed} == {7, 12, 19}


@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (80, 40), (96, 48), (128, 64), (80, 16), (128, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_equals_float64(head_dim: int, half: int, dtype: torch.dtype) -> None:
    """Queries in place, keys in their slots, both within half a unit in the last place; V and the rest are exact."""
    heads, kv_heads, tokens = 9, 3, 5
    pool = poisoned(PoolShape(4, 2, kv_heads, 4, head_dim, dtype))
    fused = torch.randn(tokens, heads + 2 * kv_heads, head_dim).to(dtype)
    before = fused.clone()
    angles = torch.randn(tokens, half, dtype=torch.float64) * 3
    slots = torch.tensor([4, 9, 0, 19, -1])
    query, key, value = fused.split((heads, kv_heads, kv_heads), 1)
    write_rotated_kv(pool, 1, query, key, value, slots, angles.cos().float(), angles.sin().float())

    def rotated(heads_before: torch.Tensor) -> torch.Tensor:
        a, b, rest = heads_before.double().split((half, half, head_dim - 2 * half), -1)
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine, rest), -1)

    unit = torch.finfo(dtype).eps
    old_query, old_key, old_value = before.split((heads, kv_heads, kv_heads), 1)
    torch.testing.assert_close(query.double(), rotated(old_query), rtol=unit, atol=2e-6)
    assert torch.equal(fused[:, heads:], before[:, heads:])
    slotted = pool.permute(0, 4, 1, 2, 3, 5).reshape(-1, 2, 2, kv_heads, head_dim)
    torch.testing.assert_close(slotted[slots[:4], 1, 0].double(), rotated(old_key)[:4], rtol=unit, atol=2e-6)
    assert torch.equal(slotted[slots[:4], 1, 1], old_value[:4])
    assert torch.equal(query[..., 2 * half :], old_query[..., 2 * half :])
    untouched = torch.ones(20, dtype=torch.bool)
    untouched[slots[:4]] = False
    assert slotted[untouched].isnan().all()
    assert slotted[:, 0].isnan().all()


@pytest.mark.parametrize("kv_dtype", FP8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_is_scaled_rounded_and_held_to_its_range(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    pool = poisoned(PoolShape(2, 1, 2, 16, 32, kv_dtype))
    scales = torch.tensor([[0.02, 0.5], [0.001, 3.0]])
    key, value = (torch.randn(2, 16, 2, 32) * 4).to(dtype)
    write_kv(pool, 0, key, value, torch.arange(16, 32), kv_scales=scales)
    largest = torch.finfo(kv_dtype).max
    for kv, given_rows in enumerate((key, value)):
        wanted = (given_rows.float() / scales[kv][:, None]).clamp(-largest, largest).to(kv_dtype)
        assert torch.equal(bits(pool[1, 0, kv]), bits(wanted.transpose(0, 1)))
    assert pool[[0, 2]].float().isnan().all()
    key[0, 1, 7] = value[3, 0, 2] = math.nan
    write_kv(pool, 0, key, value, torch.arange(16, 32), kv_scales=scales)
    for kv, given_rows in enumerate((key, value)):
        assert torch.equal(pool[1, 0, kv].float().isnan(), given_rows.isnan().transpose(0, 1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_b79_slots_beyond_32_bits(dtype: torch.dtype) -> None:
    """32,770 blocks of 65,536 elements, never touched but for the last: see the same test of attention. The slot number
    itself, 32,770 * 256 - 1, fits 32 bits.
    """
    pool = allocate_host_pool(PoolShape(1, 2, 2, 256, 32, torch.float16), 2**15 + 2, pinned=False)
    key, value = torch.randn(2, 2, 2, 32).half()
    last = pool.shape[0] * 256 - 1
    write_kv(pool, 1, key, value, torch.tensor([last, 3], dtype=dtype))
    assert torch.equal(pool[-1, 1, 0, :, 255], key[0])
    assert torch.equal(pool[-1, 1, 1, :, 255], value[0])
    zero_blocks(pool, [pool.shape[0] - 1])
    assert not pool[-1].any()
    assert torch.equal(pool[0, 1, 0, :, 3], key[1])


@pytest.mark.parametrize("shape", [PoolShape(5, 1, 1, 1, 3, torch.bfloat16), PoolShape(5, 3, 2, 16, 80, torch.float32)])
def test_zeroing_spares_the_others(shape: PoolShape) -> None:
    pool = torch.randn(shape.dims).to(shape.dtype)
    expected = pool.clone()
    expected[[1, 4]] = 0
    zero_blocks(pool, [4, 1])
    assert torch.equal(pool, expected)
    zero_blocks(pool, [])
    for outside in (-1, 6):
        with pytest.raises(ValueError, match=f"block {outside} cannot be zeroed: a block id lies in 0\\.\\.5"):
            zero_blocks(pool, [2, outside])
    assert torch.equal(pool, expected)


def test_copies_work_without_cupy() -> None:
    pool = torch.randn(PoolShape(4, 1, 2, 4, 8, torch.float32).dims)
    expected = pool.clone()
    expected[3] = pool[1]
    copy_blocks(pool, [1], [3])
    assert torch.equal(pool, expected)


def test_what_only_these_kernels_refuse() -> None:
    pool = torch.zeros(PoolShape(2, 1, 2, 4, 32, torch.float32).dims)
    good, slots = torch.zeros(1, 2, 32), torch.tensor([4])
    with pytest.raises(ValueError, match="last dimension"):
        write_kv(pool, 0, torch.zeros(1, 32, 2).mT, good, slots)
