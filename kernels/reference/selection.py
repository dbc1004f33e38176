"""The largest logits, in plain torch."""

import torch


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """`kernels.argmax`."""
    return torch.argmax(logits, dim=-1)


def top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.top_k`."""
    # A stable sort: torch.topk leaves the order of equal values open.
    values, indices = torch.sort(logits, dim=-1, descending=True, stable=True)
    return values[..., :k].contiguous(), indices[..., :k].contiguous()
