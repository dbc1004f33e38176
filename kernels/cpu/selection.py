"""The largest logits by the C++ library."""

import ctypes

import torch

from kernels import reference
from kernels.cpu.library import TopK, kernels

MAX_K = 256
"""Beyond this, keeping the k best sorted costs more than sorting the row."""


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """`kernels.argmax`."""
    return top_k(logits, 1)[1].squeeze(-1)


def top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.top_k`; large k and other dtypes go to the reference."""
    if logits.dtype != torch.float32 or k > MAX_K or logits.dim() != 2:
        return reference.top_k(logits, k)
    logits = logits.contiguous()
    rows, width = logits.shape
    values, indices = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
    call = TopK(logits.data_ptr(), values.data_ptr(), indices.data_ptr(), rows, width, k, torch.get_num_threads())
    kernels().top_k(ctypes.byref(call))
    return values, indices
