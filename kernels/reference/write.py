"""Writing a step's K and V into the pool, alone or with rotary embeddings, and zeroing blocks, in plain torch."""

from collections.abc import Sequence

import torch

from kernels.checks import FP8, check_contiguous


def write_kv(
    pool: torch.Tensor,
    layer: int,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    *,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """`kernels.write_kv`; ValueError when the pool is not contiguous."""
    check_contiguous(pool)
    num_slots = pool.shape[0] * pool.shape[4]
    if slots.device.type == "cpu" and slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < num_slots:
        raise IndexError(f"a slot lies outside the pool's {pool.shape[0]} blocks")
    key, value = (_stored(given, pool, kv_scales, index) for index, given in enumerate((key, value)))
    _, num_layers, _, kv_heads, block_size, head_dim = pool.shape
    # The pool as rows of one (block, layer, K or V, head, offset). Copying rows by index takes 40 us for
    # 16 tokens where assigning through two index tensors takes 64, and this runs in every layer of every step.
    rows_per_head = block_size
    rows_per_kv = kv_heads * rows_per_head
    rows_per_block = num_layers * 2 * rows_per_kv
    blocks = slots.div(block_size, rounding_mode="floor")
    first_rows = slots.add(blocks, alpha=rows_per_block - block_size)
    heads = torch.arange(0, rows_per_kv, rows_per_head, device=slots.device)
    rows = (first_rows[:, None] + heads).flatten()
    of_layer = _indexable(pool).view(-1, head_dim)[layer * 2 * rows_per_kv :]
    of_layer.index_copy_(0, rows, key.reshape(-1, head_dim))
    of_layer[rows_per_kv:].index_copy_(0, rows, value.reshape(-1, head_dim))


def write_rotated_kv(
    pool: torch.Tensor,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    *,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """`kernels.write_rotated_kv`."""
    # The key first: a refused slot must leave the queries as they were.
    write_kv(pool, layer, _rotated(key, cosine, sine), value, slots, kv_scales=kv_scales)
    query.copy_(_rotated(query, cosine, sine))


def zero_blocks(pool: torch.Tensor, blocks: Sequence[int]) -> None:
    """`kernels.zero_blocks`."""
    for block in blocks:
        if not 0 <= block < pool.shape[0]:
            raise ValueError(f"block {block} cannot be zeroed: a block id lies in 0..{pool.shape[0] - 1}")
    _indexable(pool).index_fill_(0, torch.tensor(list(blocks), dtype=torch.int64, device=pool.device), 0)


def _rotated(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_dim] by [tokens, half], in float32 or wider, back in the given dtype."""
    half = cosine.shape[1]
    wide = torch.promote_types(heads.dtype, cosine.dtype)
    given = heads.to(wide)
    a, b, rest = given[..., :half], given[..., half : 2 * half], given[..., 2 * half :]
    cosine, sine = cosine[:, None], sine[:, None]
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine, rest), -1).to(heads.dtype)


def _indexable(pool: torch.Tensor) -> torch.Tensor:
    """torch copies and fills by index in every dtype but 8-bit floats."""
    return pool.view(torch.uint8) if pool.dtype in FP8 else pool


def _stored(given: torch.Tensor, pool: torch.Tensor, kv_scales: torch.Tensor | None, index: int) -> torch.Tensor:
    """K (index 0) or V (1) as the pool keeps it."""
    if pool.dtype not in FP8:
        return given.to(pool.dtype)
    assert kv_scales is not None
    largest = torch.finfo(pool.dtype).max
    scaled = (given.float() / kv_scales[index, :, None]).clamp_(-largest, largest)
    return scaled.to(pool.dtype).view(torch.uint8)
