"""Inverting cumulative distributions, one number per row."""

import torch
from torch import Tensor

from model_worker.sampling.rows import BLOCK, block_sums


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token at each row's number, in the order of the columns.

    Args:
        weights: ``[rows, width]`` of any float dtype, at least one above zero in each row; need not sum to 1.
        uniforms: float64 ``[rows]`` in [0, 1).

    Returns:
        int64 ``[rows]``, columns of weight above zero.
    """
    cumulative = torch.cumsum(weights, dim=-1, dtype=torch.float64)
    return _invert(cumulative, uniforms.unsqueeze(1) * cumulative[:, -1:]).squeeze(1)


def draw_from_vocabulary(weights: Tensor, uniforms: Tensor) -> Tensor:
    """``draw`` for wide rows: first among blocks of columns, then within the block, so that few additions wait."""
    width = weights.shape[-1]
    sums = block_sums(weights)
    cumulative = torch.cumsum(sums, dim=-1, dtype=torch.float64)
    targets = uniforms.unsqueeze(1) * cumulative[:, -1:]
    block = _invert(cumulative, targets)
    before = cumulative.gather(1, block) - sums.gather(1, block)
    columns = block * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = torch.where(columns < width, weights.gather(1, columns.clamp(max=width - 1)), 0.0)
    within = _invert(torch.cumsum(inside, dim=-1, dtype=torch.float64), targets - before)
    return columns.gather(1, within).squeeze(1)


def _invert(cumulative: Tensor, targets: Tensor) -> Tensor:
    """int64 ``[rows, 1]``: the first entry above the target; by rounding there may be none, then the last of weight."""
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1, keepdim=True)
    return torch.minimum((cumulative <= targets).sum(dim=-1, keepdim=True), last)
