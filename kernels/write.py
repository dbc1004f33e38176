"""Writing a step's K and V into the pool."""

import torch


def write_kv(pool: torch.Tensor, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Writes one layer's K and V of a step's tokens into their slots, in place.

    pool   [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim], contiguous
    key    [tokens, kv_heads, head_dim], as value
    slots  int64 [tokens], `block * block_size + offset`; slots of block 0 may repeat, all others must be distinct

    Raises ValueError when the shapes disagree; a slot outside the pool is an IndexError on CPU.
    """
    expected = (slots.shape[0], pool.shape[3], pool.shape[5])
    if key.shape != expected or value.shape != expected:
        raise ValueError(f"key {list(key.shape)} and value {list(value.shape)} must both be {list(expected)}")
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
    of_layer = pool.view(-1, head_dim)[layer * 2 * rows_per_kv :]
    of_layer.index_copy_(0, rows, key.reshape(-1, head_dim))
    of_layer[rows_per_kv:].index_copy_(0, rows, value.reshape(-1, head_dim))
