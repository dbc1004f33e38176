"""Operations on the paged KV pool and on activations, each with several implementations and one contract.

Pool layout: `[num_blocks + 1, num_layers, 2, num_kv_heads, block_size, head_dim]`. Row 0 is the null block, index 0 of
the third axis is K and 1 is V. A slot is `block * block_size + offset`; the slots of block 0 are a harmless sink.

`backend()` says which implementation serves a device, and why; OCTAVO_KERNELS forces one.
"""

from kernels.backend import BackendError, backend
from kernels.cache import allocate_pool, copy_blocks, paged_attention, write_kv, write_rotated_kv, zero_blocks
from kernels.decoder import DecoderLayer, DecoderStack, GatedFeedForward, decoder_layers
from kernels.layers import (
    add_rms_norm,
    argmax,
    embedding,
    linear,
    pack_gated_linear,
    pack_linear,
    silu_mul,
    top_k,
)
from kernels.model import DecoderEnds, decoder_logits
from kernels.packed import Activation, PackedLinear
from kernels.pool import PoolShape
from kernels.quantize import Quantization
from kernels.ragged import RaggedBatch
from kernels.swaps import allocate_host_pool, swap_in, swap_out

__all__ = [
    "Activation",
    "BackendError",
    "DecoderEnds",
    "DecoderLayer",
    "DecoderStack",
    "GatedFeedForward",
    "PackedLinear",
    "PoolShape",
    "Quantization",
    "RaggedBatch",
    "add_rms_norm",
    "allocate_host_pool",
    "allocate_pool",
    "argmax",
    "backend",
    "copy_blocks",
    "decoder_layers",
    "decoder_logits",
    "embedding",
    "linear",
    "pack_gated_linear",
    "pack_linear",
    "paged_attention",
    "silu_mul",
    "swap_in",
    "swap_out",
    "top_k",
    "write_kv",
    "write_rotated_kv",
    "zero_blocks",
]
