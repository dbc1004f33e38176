"""Writes into the pool as Triton programs: a step's K and V, alone or fused with rotary embeddings; zeroed blocks."""

# Triton compiles these functions: their parameters have no Python types, and upper case names constants.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, import-untyped"
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def stored(values, scale, largest, dtype: tl.constexpr):
    """What the pool keeps of float32 values: divided by the scale and held to the format's range if it is fp8.

    NaN stays NaN: what went wrong before must not turn into a large number.
    """
    if scale is not None:
        at_least = tl.maximum(values / scale, -largest, propagate_nan=tl.PropagateNan.ALL)
        values = tl.minimum(at_least, largest, propagate_nan=tl.PropagateNan.ALL)
    return values.to(dtype)


@triton.jit(do_not_specialize=["num_slots"], do_not_specialize_on_alignment=["slots"])
def write_kv_kernel(
    query,
    key,
    value,
    keys,
    values,
    slots,
    cosine,
    sine,
    kv_scales,
    largest,
    num_slots,
    heads,
    kv_heads,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    rotation_stride,
    kv_block_stride,
    kv_head_stride,
    kv_token_stride,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    HALF: tl.constexpr,
    HALF_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One token, HEADS heads: rotates K into its slot and copies V there, or rotates Q in place.

    Programs (token, i): the first cdiv(kv_heads, HEADS) of a token take K and V, the others Q. Without rotation (cosine
    None) there are no others, and all HEAD_DIM dimensions are copied; with it, the dimensions from 2 * HALF on. Tokens
    whose slot lies outside [0, num_slots) write no K and V.
    """
    token = tl.program_id(0).to(tl.int64)
    kv_programs = tl.cdiv(kv_heads, HEADS)
    is_query = tl.program_id(1) >= kv_programs
    dims = tl.arange(0, DIM_TILE)
    halves = tl.arange(0, HALF_TILE)
    if cosine is not None:
        turn = token * rotation_stride + halves
        cos = tl.load(cosine + turn, mask=halves < HALF, other=0.0).to(tl.float32)[None, :]
        sin = tl.load(sine + turn, mask=halves < HALF, other=0.0).to(tl.float32)[None, :]
        if is_query:
            head = (tl.program_id(1) - kv_programs) * HEADS + tl.arange(0, HEADS)
            first = (
                query + (token * query_token_stride + head.to(tl.int64) * query_head_stride)[:, None] + halves[None, :]
            )
            turning = (head < heads)[:, None] & (halves < HALF)[None, :]
            a = tl.load(first, mask=turning, other=0.0).to(tl.float32)
            b = tl.load(first + HALF, mask=turning, other=0.0).to(tl.float32)
            tl.store(first, (a * cos - b * sin).to(query.dtype.element_ty), mask=turning)
            tl.store(first + HALF, (b * cos + a * sin).to(query.dtype.element_ty), mask=turning)
            return

    slot = tl.load(slots + token).to(tl.int64)
    if (slot < 0) | (slot >= num_slots):
        return
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    is_head = (head < kv_heads)[:, None]
    place = (slot // BLOCK_SIZE) * kv_block_stride + (slot % BLOCK_SIZE) * kv_token_stride
    places = (place + head * kv_head_stride)[:, None]
    key_scale = None
    value_scale = None
    if kv_scales is not None:
        key_scale = tl.load(kv_scales + head, mask=head < kv_heads, other=1.0)[:, None]
        value_scale = tl.load(kv_scales + kv_heads + head, mask=head < kv_heads, other=1.0)[:, None]

    new_key = key + (token * key_token_stride + head * key_head_stride)[:, None]
    copied = is_head & (dims < HEAD_DIM)[None, :]
    if cosine is not None:
        turning = is_head & (halves < HALF)[None, :]
        a = tl.load(new_key + halves[None, :], mask=turning, other=0.0).to(tl.float32)
        b = tl.load(new_key + halves[None, :] + HALF, mask=turning, other=0.0).to(tl.float32)
        to = keys + places + halves[None, :]
        tl.store(to, stored(a * cos - b * sin, key_scale, largest, keys.dtype.element_ty), mask=turning)
        tl.store(to + HALF, stored(b * cos + a * sin, key_scale, largest, keys.dtype.element_ty), mask=turning)
    if cosine is None or 2 * HALF < HEAD_DIM:
        rest = copied
        if cosine is not None:
            rest = copied & (dims >= 2 * HALF)[None, :]
        x = tl.load(new_key + dims[None, :], mask=rest, other=0.0)
        if kv_scales is not None:
            x = stored(x.to(tl.float32), key_scale, largest, keys.dtype.element_ty)
        tl.store(keys + places + dims[None, :], x, mask=rest)
    new_value = value + (token * value_token_stride + head * value_head_stride)[:, None]
    x = tl.load(new_value + dims[None, :], mask=copied, other=0.0)
    if kv_scales is not None:
        x = stored(x.to(tl.float32), value_scale, largest, values.dtype.element_ty)
    tl.store(values + places + dims[None, :], x, mask=copied)


@triton.jit
def zero_blocks_kernel(pool, blocks, block_bytes, BYTES: tl.constexpr):
    """Bytes [i * BYTES, (i + 1) * BYTES) of block blocks[j]; program (j, i)."""
    block = tl.load(blocks + tl.program_id(0)).to(tl.int64)
    at = tl.program_id(1).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    tl.store(pool + block * block_bytes + at, tl.zeros([BYTES], tl.uint8), mask=at < block_bytes)
