"""The KV pool: one tensor whose rows are blocks, each holding the K and V of all layers."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Geometry of a pool. `num_blocks` counts usable blocks, ids 1 to num_blocks; the null block 0 comes on top."""

    num_blocks: int
    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        for name in ("num_blocks", "num_layers", "num_kv_heads", "block_size", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point one, got {self.dtype}")

    @property
    def dims(self) -> tuple[int, int, int, int, int, int]:
        """Sizes of the pool tensor, the null block included."""
        return (self.num_blocks + 1, self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: `block_size` tokens of K and V of all layers, contiguous."""
        elements = self.num_layers * 2 * self.num_kv_heads * self.block_size * self.head_dim
        return elements * self.dtype.itemsize

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool tensor, the null block included."""
        return (self.num_blocks + 1) * self.block_bytes
