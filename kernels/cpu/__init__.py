"""The CPU path: a C++ library of vector kernels, by ctypes. What it does not cover is left to the reference.

Importing it needs no library; `library.why_not` says whether there is one that runs here.
"""

from kernels.cpu.attention import paged_attention
from kernels.cpu.decoder import decoder_layers
from kernels.cpu.layers import add_rms_norm, embedding, linear, silu_mul
from kernels.cpu.memory import allocate_pool
from kernels.cpu.model import decoder_logits
from kernels.cpu.packing import pack_gated_linear, pack_linear
from kernels.cpu.selection import argmax, top_k
from kernels.cpu.write import write_kv, write_rotated_kv

__all__ = [
    "add_rms_norm",
    "allocate_pool",
    "argmax",
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
]
