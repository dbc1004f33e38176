"""What the public operations refuse before any implementation sees it, in the same words for all of them."""

import torch

from kernels.ragged import RaggedBatch

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)


def check_attention(
    query: torch.Tensor,
    pool: torch.Tensor,
    batch: RaggedBatch,
    window: int | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    kv_scales: torch.Tensor | None,
) -> None:
    """ValueError unless the arguments of `paged_attention` fit each other."""
    tokens, heads, head_dim = query.shape
    if heads % pool.shape[3]:
        raise ValueError(f"{heads} query heads cannot share {pool.shape[3]} KV heads evenly")
    if head_dim != pool.shape[5]:
        raise ValueError(f"queries have head dim {head_dim}, the pool {pool.shape[5]}")
    narrowed = query.dtype == torch.float32 and pool.dtype in (torch.bfloat16, torch.float16)
    if query.dtype != pool.dtype and not narrowed and pool.dtype not in FP8:
        raise ValueError(f"queries are {query.dtype}, the pool is {pool.dtype}")
    if tokens != batch.num_tokens:
        raise ValueError(f"{tokens} queries for a batch of {batch.num_tokens} tokens")
    if window is not None and window < 1:
        raise ValueError(f"a sliding window holds at least one token, got {window}")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap must be positive, got {soft_cap}")
    if sinks is not None and (sinks.shape != (heads,) or sinks.dtype != torch.float32):
        raise ValueError(f"sinks must be float32 [{heads}], got {sinks.dtype} {list(sinks.shape)}")
    block_size, width = pool.shape[4], batch.block_tables.shape[1]
    longest = max(batch.host_context_lengths, default=0)
    if longest > width * block_size:
        raise ValueError(f"a context of {longest} tokens does not fit block tables of {width} blocks of {block_size}")
    check_kv_scales(pool, kv_scales)


def check_kv_scales(pool: torch.Tensor, kv_scales: torch.Tensor | None) -> None:
    """ValueError unless an fp8 pool has float32 [2, kv_heads] beside it."""
    if pool.dtype not in FP8:
        return
    expected = (2, pool.shape[3])
    if kv_scales is None or kv_scales.shape != expected or kv_scales.dtype != torch.float32:
        raise ValueError(f"an fp8 pool needs kv_scales, float32 {list(expected)}")


def check_written(
    pool: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    kv_scales: torch.Tensor | None,
) -> None:
    """ValueError unless K and V of every token are given in the pool's geometry."""
    expected = (slots.shape[0], pool.shape[3], pool.shape[5])
    if key.shape != expected or value.shape != expected:
        raise ValueError(f"key {list(key.shape)} and value {list(value.shape)} must both be {list(expected)}")
    check_kv_scales(pool, kv_scales)


def check_rotation(query: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, key: torch.Tensor) -> None:
    """ValueError unless there is a query and one rotation per key, of at most head_dim dimensions."""
    tokens, _, head_dim = key.shape
    if query.shape[0] != tokens or query.shape[2] != head_dim:
        raise ValueError(f"query {list(query.shape)} must be [{tokens}, heads, {head_dim}]")
    if cosine.shape != sine.shape or cosine.shape[0] != tokens or 2 * cosine.shape[1] > head_dim:
        raise ValueError(
            f"cosine {list(cosine.shape)} and sine {list(sine.shape)} must both be [{tokens}, half] "
            f"with half at most {head_dim // 2}"
        )
