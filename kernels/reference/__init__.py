"""The plain torch implementation of every operation: on any device, in any dtype, the oracle of all others."""

from kernels.reference.attention import paged_attention
from kernels.reference.copies import copy_blocks
from kernels.reference.decoder import decoder_layers
from kernels.reference.layers import add_rms_norm, embedding, linear, pack_gated_linear, pack_linear, silu_mul
from kernels.reference.memory import allocate_pool
from kernels.reference.model import decoder_logits
from kernels.reference.selection import argmax, top_k
from kernels.reference.write import write_kv, write_rotated_kv, zero_blocks

__all__ = [
    "add_rms_norm",
    "allocate_pool",
    "argmax",
    "copy_blocks",
    "decoder_layers",
    "decoder_logits",
    "embedding",
    "linear",
    "pack_gated_linear",
    "pack_linear",
    "paged_attention",
    "silu_mul",
    "top_k",
    "write_kv",
    "write_rotated_kv",
    "zero_blocks",
]
