"""The GPU path: operations on the pool as Triton kernels, for NVIDIA and AMD, and for Triton's interpreter.

Importing it repairs the interpreter of a process that has one, which computes some formats wrongly as released.
"""

from kernels.triton.attention import paged_attention
from kernels.triton.copies import copy_blocks
from kernels.triton.device import interpreted
from kernels.triton.write import write_kv, write_rotated_kv, zero_blocks

__all__ = ["copy_blocks", "paged_attention", "write_kv", "write_rotated_kv", "zero_blocks"]

if interpreted():
    from kernels.triton.interpreter import repair

    repair()
