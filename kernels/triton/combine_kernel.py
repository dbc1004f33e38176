"""The softmax of a row whose keys were attended in parts: splits of its keys, and a sink.

A total of NaN, from a query or a visible key that holds NaN, stays NaN: only a total of exactly 0 means that no key was
seen.
"""

# Triton compiles these functions: their parameters have no Python types, and upper case names constants.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, import-untyped"
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def divisor(total):
    """What a row's accumulator is divided by: rows without keys keep their zeros."""
    return tl.where(total == 0, 1.0, total)


@triton.jit
def log_sum(top, total):
    """Base-2 log-sum-exp of a running softmax, -inf where it has seen no key."""
    return tl.where(total == 0, float("-inf"), top + tl.log2(divisor(total)))


@triton.jit
def joined_by_sink(top, total, sink):
    """(what the accumulator is multiplied by, the new total) when a logit in base e, without a value, joins the row."""
    sink *= 1.4426950408889634
    new_top = tl.maximum(top, sink)
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
    shrink = tl.exp2(top - finite_top)
    return shrink, total * shrink + tl.exp2(sink - finite_top)


@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["query_starts", "items"])
def combine_splits_kernel(
    output,
    partial,
    partial_lse,
    query_starts,
    items,
    kv_scales,
    sinks,
    num_splits,
    kv_heads,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The softmax over all keys from those over splits: each split weighs 2 ** (its lse - the lse of all).

    One program per (item * kv_heads + kv head, row); arguments as in paged_attention_kernel. It reads SPLITS splits at
    a time.
    """
    kv_head = tl.program_id(0) % kv_heads
    item = tl.program_id(0) // kv_heads
    if items is None:
        sequence = item
        row = tl.program_id(1)
    else:
        sequence = tl.load(items + 2 * item)
        row = tl.load(items + 2 * item + 1) + tl.program_id(1)
    start = tl.load(query_starts + sequence)
    token = row // GROUP
    if token >= tl.load(query_starts + sequence + 1) - start:
        return
    head = kv_head * GROUP + row % GROUP

    dims = tl.arange(0, DIM_TILE)
    accumulator = tl.zeros([DIM_TILE], tl.float32)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    first = tl.program_id(0).to(tl.int64) * num_splits
    for begin in range(0, num_splits, SPLITS):
        splits = begin + tl.arange(0, SPLITS)
        places = (first + splits) * ROWS + tl.program_id(1)
        lse = tl.load(partial_lse + places, mask=splits < num_splits, other=float("-inf"))
        filled = lse != float("-inf")
        parts = tl.load(
            partial + (places * HEAD_DIM)[:, None] + dims[None, :],
            mask=filled[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(lse, 0))
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(lse - finite_top)
        shrink = tl.exp2(top - finite_top)
        accumulator = accumulator * shrink + tl.sum(weights[:, None] * parts, 0)
        total = total * shrink + tl.sum(weights, 0)
        top = new_top
    if sinks is not None:
        shrink, total = joined_by_sink(top, total, tl.load(sinks + head))
        accumulator *= shrink
    result = accumulator / divisor(total)
    if kv_scales is not None:
        result *= tl.load(kv_scales + kv_heads + kv_head)
    place = (start + token).to(tl.int64) * (kv_heads * GROUP) + head
    tl.store(output + place * HEAD_DIM + dims, result.to(output.dtype.element_ty), mask=dims < HEAD_DIM)
