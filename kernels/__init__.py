"""Operations on the paged KV pool, each a function with a plain torch implementation.

Pool layout: `[num_blocks + 1, num_layers, 2, num_kv_heads, block_size, head_dim]`. Row 0 is the null block, index 0 of
the third axis is K and 1 is V. A slot is `block * block_size + offset`; the slots of block 0 are a harmless sink.
"""

from kernels.attention import paged_attention
from kernels.copies import copy_blocks
from kernels.pool import PoolShape, allocate_pool
from kernels.ragged import RaggedBatch
from kernels.write import write_kv

__all__ = ["PoolShape", "RaggedBatch", "allocate_pool", "copy_blocks", "paged_attention", "write_kv"]
