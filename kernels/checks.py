"""What the public operations on the pool refuse before any implementation sees it, in the same words for all of them.

A few microseconds a call. What is the same for a whole step is checked when it is made: `RaggedBatch`, `DecoderStack`.
"""

import math

import torch

from kernels.ragged import RaggedBatch

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)
MAX_WINDOW = 2**31 - 1


def described(tensor: torch.Tensor) -> str:
    """Its dtype, shape and, off the CPU, device, for a message."""
    place = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{place}"


def check_device(device: torch.device, **others: torch.Tensor | None) -> None:
    """ValueError unless all tensors given lie on the device: an address of another one would be read as one of it."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name} lies on {tensor.device}, the other arguments on {device}")


def check_rank(rank: int, dims: str, **tensors: torch.Tensor) -> None:
    """ValueError unless all tensors given have so many dimensions."""
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise ValueError(f"{name} must be {dims}, got {list(tensor.shape)}")


def check_pool(pool: torch.Tensor) -> None:
    """ValueError unless this may be a pool."""
    shape = pool.shape
    if len(shape) != 6 or shape[2] != 2 or 0 in shape:
        raise ValueError(
            "pool must be [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim], none of them 0, "
            f"got {list(shape)}"
        )


def check_contiguous(pool: torch.Tensor) -> None:
    """ValueError unless the pool is whole: the reference sees it as rows, and has no strides to see less."""
    if not pool.is_contiguous():
        raise ValueError(f"pool must be contiguous for what only the reference serves, its strides are {pool.stride()}")


def check_layer(layer: int, pool: torch.Tensor) -> None:
    """ValueError unless the pool has the layer: another one's memory lies there otherwise, or none."""
    if not isinstance(layer, int) or not 0 <= layer < pool.shape[1]:
        raise ValueError(f"layer must be an int in 0..{pool.shape[1] - 1}, got {layer!r}")


def check_window(window: int | None) -> None:
    """ValueError unless a sliding window, if there is one, is a number of tokens."""
    if window is not None and not (isinstance(window, int) and 1 <= window <= MAX_WINDOW):
        raise ValueError(f"window must be an int in 1..{MAX_WINDOW}, the tokens a query sees, got {window!r}")


def check_soft_cap(soft_cap: float | None) -> None:
    """ValueError unless a cap, if there is one, is a positive number."""
    if soft_cap is not None and not 0 < soft_cap < math.inf:
        raise ValueError(f"soft_cap must be positive and finite, got {soft_cap}")


def check_attention(
    query: torch.Tensor,
    pool: torch.Tensor,
    batch: RaggedBatch,
    window: int | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    kv_scales: torch.Tensor | None,
) -> None:
    """ValueError unless the arguments of `paged_attention` but for the layer fit each other."""
    check_pool(pool)
    check_rank(3, "[tokens, heads, head_dim]", query=query)
    check_device(query.device, pool=pool, block_tables=batch.block_tables, sinks=sinks)
    tokens, heads, head_dim = query.shape
    _, _, _, kv_heads, block_size, pool_dim = pool.shape
    if heads == 0 or heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} KV heads evenly")
    if head_dim != pool_dim:
        raise ValueError(f"queries have head dim {head_dim}, the pool {pool_dim}")
    check_query_dtype(query.dtype, pool.dtype)
    check_window(window)
    check_soft_cap(soft_cap)
    if sinks is not None and (sinks.shape != (heads,) or sinks.dtype != torch.float32):
        raise ValueError(f"sinks must be float32 [{heads}], got {described(sinks)}")
    if tokens != batch.num_tokens:
        raise ValueError(f"{tokens} queries for a batch of {batch.num_tokens} tokens")
    batch.check_tables(block_size)
    check_kv_scales(pool, kv_scales)


def check_query_dtype(query: torch.dtype, pool: torch.dtype) -> None:
    """ValueError unless queries of the one may read a pool of the other."""
    if query == pool and query not in FP8:
        return
    wide = query.is_floating_point and query.itemsize >= 2
    narrowed = query == torch.float32 and pool in (torch.bfloat16, torch.float16)
    if not (narrowed or (wide and pool in FP8)):
        raise ValueError(f"queries are {query}, the pool is {pool}")


def check_kv_scales(pool: torch.Tensor, kv_scales: torch.Tensor | None) -> None:
    """ValueError unless an fp8 pool has float32 [2, kv_heads] beside it, and any other pool nothing."""
    if pool.dtype not in FP8:
        if kv_scales is not None:
            raise ValueError(f"kv_scales belong to an fp8 pool, and would be ignored beside {pool.dtype}")
        return
    expected = (2, pool.shape[3])
    if kv_scales is None or kv_scales.shape != expected or kv_scales.dtype != torch.float32:
        raise ValueError(f"an fp8 pool needs kv_scales, float32 {list(expected)}")
    check_device(pool.device, kv_scales=kv_scales)


def check_written(
    pool: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    kv_scales: torch.Tensor | None,
) -> None:
    """ValueError unless K and V of every token are given in the pool's geometry."""
    check_pool(pool)
    check_device(pool.device, key=key, value=value, slots=slots)
    if slots.dim() != 1 or slots.dtype != torch.int64:
        raise ValueError(f"slots must be int64 [tokens], got {described(slots)}")
    expected = (slots.shape[0], pool.shape[3], pool.shape[5])
    if key.shape != expected or value.shape != expected:
        raise ValueError(f"key {list(key.shape)} and value {list(value.shape)} must both be {list(expected)}")
    if key.dtype != value.dtype or not key.is_floating_point():
        raise ValueError(f"key {key.dtype} and value {value.dtype} must be of one floating-point dtype")
    check_kv_scales(pool, kv_scales)


def check_rotation(query: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, key: torch.Tensor) -> None:
    """ValueError unless there is a query and one rotation per key, of at most head_dim dimensions."""
    check_device(key.device, query=query, cosine=cosine, sine=sine)
    tokens, _, head_dim = key.shape
    shape = query.shape
    if len(shape) != 3 or shape[0] != tokens or shape[2] != head_dim or query.dtype != key.dtype:
        raise ValueError(f"query {described(query)} must be [{tokens}, heads, {head_dim}] of {key.dtype}, as key")
    half = cosine.shape
    if half != sine.shape or len(half) != 2 or half[0] != tokens or 2 * half[1] > head_dim:
        raise ValueError(
            f"cosine {list(cosine.shape)} and sine {list(sine.shape)} must both be [{tokens}, half] "
            f"with half at most {head_dim // 2}"
        )
    if not cosine.dtype == sine.dtype == torch.float32:
        raise ValueError(f"cosine {cosine.dtype} and sine {sine.dtype} must both be float32")


def check_written_in_place(name: str, tensor: torch.Tensor) -> None:
    """ValueError when elements of a tensor share memory, as after `expand`: each would be changed several times."""
    strides = tensor.stride()
    if 0 in strides and any(step == 0 and size > 1 for size, step in zip(tensor.shape, strides, strict=True)):
        raise ValueError(f"{name} is written in place, so its elements may not share memory; its strides are {strides}")
