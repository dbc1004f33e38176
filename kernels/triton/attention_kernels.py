"""Paged attention as Triton programs: flash attention (Dao et al. 2022) over keys found through block tables.

One kernel serves decode and prefill. The query heads that share a KV head are rows of the same matrix product:

    rows of sequence i and KV head h        row r  =  token r // GROUP of the chunk, head h * GROUP + r % GROUP
                                            (GROUP need be no power of two: rows, not heads, are tiled)
    programs                                (item * kv_heads + h, split); an item is one tile of ROWS rows
    keys of a tile of rows                  [lowest key any row sees, highest key any row sees + 1)
    keys of split s                         whole tiles of KEYS keys: [begin + s * length, begin + (s + 1) * length)

Softmax runs in base 2 (exp2 is an instruction, exp is not). Keys that nobody sees are not loaded but read as zero, so
what unwritten slots hold cannot reach an output: 0 * NaN would be NaN.
"""

# Triton compiles these functions: their parameters have no Python types, and upper case names constants.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, import-untyped"
# ruff: noqa: N803

import triton
import triton.language as tl

from kernels.triton.combine_kernel import divisor, joined_by_sink, log_sum


@triton.jit
def capped(scores, soft_cap):
    """soft_cap * tanh(scores / soft_cap). exp2 overflows to inf or 0 at the ends, which gives +-1."""
    return soft_cap * (1 - 2 / (tl.exp2(scores * (2 * 1.4426950408889634 / soft_cap)) + 1))


@triton.jit
def attend_keys(
    query,
    accumulator,
    top,
    total,
    begin,
    end,
    lowest,
    positions,
    keys,
    values,
    table,
    kv_block_stride,
    kv_token_stride,
    score_scale,
    soft_cap,
    window,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Folds keys [begin, end) into (accumulator [ROWS, DIM_TILE], top [ROWS], total [ROWS]) of a running softmax.

    Without MASKED every row sees every key and end - begin is a multiple of KEYS.
    """
    dims = tl.arange(0, DIM_TILE)
    for start in range(begin, end, KEYS):
        at = start + tl.arange(0, KEYS)
        if MASKED:
            readable = (at >= lowest) & (at < end)
            blocks = tl.load(table + at // BLOCK_SIZE, mask=readable, other=0).to(tl.int64)
        else:
            readable = at >= 0
            blocks = tl.load(table + at // BLOCK_SIZE).to(tl.int64)
        offsets = blocks * kv_block_stride + (at % BLOCK_SIZE) * kv_token_stride
        tile = offsets[:, None] + dims[None, :]
        # The mask is built of what can be false, so that the compiler drops it where nothing can.
        if MASKED and HEAD_DIM < DIM_TILE:
            inside = readable[:, None] & (dims < HEAD_DIM)[None, :]
            key = tl.load(keys + tile, mask=inside, other=0.0)
            value = tl.load(values + tile, mask=inside, other=0.0)
        elif MASKED:
            key = tl.load(keys + tile, mask=readable[:, None], other=0.0)
            value = tl.load(values + tile, mask=readable[:, None], other=0.0)
        elif HEAD_DIM < DIM_TILE:
            key = tl.load(keys + tile, mask=(dims < HEAD_DIM)[None, :], other=0.0)
            value = tl.load(values + tile, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        else:
            key = tl.load(keys + tile)
            value = tl.load(values + tile)

        scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision=PRECISION) * score_scale
        if soft_cap is not None:
            scores = capped(scores, soft_cap) * 1.4426950408889634
        if MASKED:
            visible = at[None, :] <= positions[:, None]
            if window is not None:
                visible &= at[None, :] > positions[:, None] - window
            scores = tl.where(visible, scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet would compute -inf - -inf.
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - finite_top[:, None])
        shrink = tl.exp2(top - finite_top)
        total = total * shrink + tl.sum(weights, 1)
        value = value.to(query.dtype)
        accumulator = tl.dot(weights.to(query.dtype), value, accumulator * shrink[:, None], input_precision=PRECISION)
        top = new_top
    return accumulator, top, total


# What differs from batch to batch must not be specialised: a server would compile again at the first sight of each.
@triton.jit(
    do_not_specialize=["window", "split_tiles", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "query_starts", "context_lengths", "items"],
)
def paged_attention_kernel(
    output,
    partial,
    partial_lse,
    query,
    keys,
    values,
    block_tables,
    query_starts,
    context_lengths,
    items,
    kv_scales,
    sinks,
    score_scale,
    soft_cap,
    window,
    split_tiles,
    kv_heads,
    query_token_stride,
    query_head_stride,
    table_stride,
    kv_block_stride,
    kv_head_stride,
    kv_token_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    UNMASKED_TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attention of one tile of rows over one split of its keys.

    output          [tokens, heads, HEAD_DIM], contiguous; written when not SPLIT
    partial         float32 [items, kv_heads, splits, ROWS, HEAD_DIM], written when SPLIT, rows of empty splits are not
    partial_lse     float32 [items, kv_heads, splits, ROWS], base-2 log-sum-exp of the split, -inf when it is empty
    query           [tokens, heads, HEAD_DIM] by strides
    keys, values    [blocks, kv_heads, BLOCK_SIZE, HEAD_DIM] by strides, last dimension contiguous
    items           int32 [items, 2] of (sequence, first row), or None when item i is all rows of sequence i
    kv_scales       float32 [2, kv_heads], what stored K and V are multiplied by, or None
    sinks           float32 [heads], a logit per head that takes part in the softmax and carries no value, or None
    score_scale     times q.k is the score: in base 2, or in base e when a soft cap follows
    split_tiles     tiles of KEYS keys per split, or more where the splits would not reach the last key otherwise
    """
    kv_head = tl.program_id(0) % kv_heads
    item = tl.program_id(0) // kv_heads
    if items is None:
        sequence = item
        first_row = 0
    else:
        sequence = tl.load(items + 2 * item)
        first_row = tl.load(items + 2 * item + 1)
    start = tl.load(query_starts + sequence)
    num_tokens = tl.load(query_starts + sequence + 1) - start
    context = tl.load(context_lengths + sequence)

    rows = first_row + tl.arange(0, ROWS)
    tokens = rows // GROUP
    is_row = tokens < num_tokens
    heads = kv_head * GROUP + rows % GROUP
    first_position = context - num_tokens
    positions = first_position + tokens
    dims = tl.arange(0, DIM_TILE)
    inside = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = (start + tokens).to(tl.int64) * query_token_stride + heads * query_head_stride
    queries = tl.load(query + query_rows[:, None] + dims[None, :], mask=inside, other=0.0)

    last_token = tl.minimum(num_tokens - 1, (first_row + ROWS - 1) // GROUP)
    stop = tl.maximum(first_position + last_token + 1, 0)
    lowest = 0
    if window is not None:
        lowest = tl.maximum(first_position + first_row // GROUP - window + 1, 0)
    first_tile = lowest // KEYS
    begin = first_tile * KEYS
    end = stop
    if SPLIT:
        tiles = tl.cdiv(stop, KEYS) - first_tile
        split = tl.program_id(1)
        length = tl.maximum(split_tiles, tl.cdiv(tiles, tl.num_programs(1))) * KEYS
        begin += split * length
        end = tl.minimum(begin + length, stop)

    if kv_scales is not None:
        score_scale *= tl.load(kv_scales + kv_head)
    head_offset = kv_head.to(tl.int64) * kv_head_stride
    keys += head_offset
    values += head_offset
    table = block_tables + sequence.to(tl.int64) * table_stride
    accumulator = tl.zeros([ROWS, DIM_TILE], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    masked_from = begin
    if UNMASKED_TILES:
        # fmt: off
        masked_from = tl.maximum(tl.minimum((first_position + first_row // GROUP + 1) // KEYS * KEYS, end), begin)
        accumulator, top, total = attend_keys(
            queries, accumulator, top, total, begin, masked_from, lowest, positions, keys, values, table,
            kv_block_stride, kv_token_stride, score_scale, soft_cap, window,
            HEAD_DIM, DIM_TILE, BLOCK_SIZE, KEYS, False, PRECISION,
        )
    accumulator, top, total = attend_keys(
        queries,
        accumulator,
        top,
        total,
        masked_from,
        end,
        lowest,
        positions,
        keys,
        values,
        table,
        kv_block_stride,
        kv_token_stride,
        score_scale,
        soft_cap,
        window,
        HEAD_DIM,
        DIM_TILE,
        BLOCK_SIZE,
        KEYS,
        True,
        PRECISION,
    )
    # fmt: on

    if SPLIT:
        place = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * ROWS + tl.arange(0, ROWS)
        tl.store(partial_lse + place, log_sum(top, total), mask=is_row)
        if begin >= end:
            return
        result = accumulator / divisor(total)[:, None]
        tl.store(partial + (place * HEAD_DIM)[:, None] + dims[None, :], result, mask=inside)
    else:
        if sinks is not None:
            shrink, total = joined_by_sink(top, total, tl.load(sinks + heads, mask=is_row, other=0.0))
            accumulator *= shrink[:, None]
        result = accumulator / divisor(total)[:, None]
        if kv_scales is not None:
            result *= tl.load(kv_scales + kv_heads + kv_head)
        place = (start + tokens).to(tl.int64) * (kv_heads * GROUP) + heads
        tl.store(output + (place * HEAD_DIM)[:, None] + dims[None, :], result.to(output.dtype.element_ty), mask=inside)
