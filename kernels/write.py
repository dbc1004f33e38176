"""Writing a step's K and V into the pool."""

import torch


def write_kv(pool: torch.Tensor, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Writes one layer's K and V of a step's tokens into their slots, in place.

    pool   [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim]
    key    [tokens, kv_heads, head_dim], as value
    slots  int64 [tokens], `block * block_size + offset`; slots of block 0 may repeat, all others must be distinct

    Raises ValueError when the shapes disagree; a slot outside the pool is an IndexError on CPU.
    """
    expected = (slots.shape[0], pool.shape[3], pool.shape[5])
    if key.shape != expected or value.shape != expected:
        raise ValueError(f"key {list(key.shape)} and value {list(value.shape)} must both be {list(expected)}")
    block_size = pool.shape[4]
    blocks = slots.div(block_size, rounding_mode="floor")
    offsets = slots.sub(blocks, alpha=block_size)
    keys_and_values = pool[:, layer]
    keys_and_values[:, 0][blocks, :, offsets] = key
    keys_and_values[:, 1][blocks, :, offsets] = value
