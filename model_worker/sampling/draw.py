"""Choosing tokens by weight, at numbers that are known before the weights are.

The ids of a vocabulary are the leaves of a tree with 32 children to a node, and each level has a number of its own:

    level    3                      2                      1                    0
    choose   among blocks of 32^3   among its 32 of 32^2   among its 32 of 32   among its 32 tokens

Logits that were computed anew, after a preemption or on another worker, differ in their last digits, and a choice
changes when its number lies that close to an edge. One distribution over all tokens would have an edge for each, moved
by the errors of all tokens before it. A choice among 32 has 31, moved by errors among 32: for 49,152 tokens a text
survives some thirty times more such moves.
"""

import torch
from torch import Tensor

from model_worker.sampling.rows import block_sums

LEVELS = 4
RADIX_BITS = 5
RADIX = 1 << RADIX_BITS


def draw_from_vocabulary(weights: Tensor, numbers: Tensor) -> Tensor:
    """A token per row.

    Args:
        weights: float ``[rows, vocab]``, finite, at least one above zero in each row; need not sum to 1.
        numbers: float64 ``[rows, LEVELS]`` in [0, 1).

    Returns:
        int64 ``[rows]``, tokens of weight above zero.
    """
    sums = [weights]
    while len(sums) < LEVELS and sums[-1].shape[-1] > RADIX:
        sums.append(block_sums(sums[-1], RADIX).double())
    chosen = torch.arange(sums[-1].shape[-1], device=weights.device).expand(len(weights), -1)
    for level in reversed(range(len(sums))):
        width = sums[level].shape[-1]
        inside = torch.where(chosen < width, sums[level].gather(1, chosen.clamp(max=width - 1)), 0.0)
        chosen = chosen.gather(1, _choose(inside, numbers[:, level]))
        if level:
            chosen = chosen * RADIX + torch.arange(RADIX, device=weights.device)
    return chosen.squeeze(1)


def draw_from_few(ids: Tensor, weights: Tensor, numbers: Tensor, vocab: int) -> Tensor:
    """What ``draw_from_vocabulary`` draws where all other tokens weigh nothing.

    Args:
        ids: int64 ``[rows, width]``, each below ``vocab``; which ones does not matter where the weight is zero.
        weights: float64 ``[rows, width]``, at least one above zero in each row.
        numbers: float64 ``[rows, LEVELS]`` in [0, 1).
    """
    node = torch.zeros_like(ids[:, :1])
    for level in reversed(range(LEVELS)):
        child = ids >> RADIX_BITS * level
        at_top = level == LEVELS - 1
        inside = weights if at_top else torch.where(child >> RADIX_BITS == node, weights, 0.0)
        sums = weights.new_zeros(len(ids), (vocab >> RADIX_BITS * level) + 1 if at_top else RADIX)
        sums.scatter_add_(1, child if at_top else child & RADIX - 1, inside)
        node = (node << RADIX_BITS) + _choose(sums, numbers[:, level])
    return node.squeeze(1)


def _choose(weights: Tensor, numbers: Tensor) -> Tensor:
    """int64 ``[rows, 1]``: the first column with more weight up to it than its row's number is of the whole.

    By rounding there may be none, then it is the last of weight.
    """
    cumulative = torch.cumsum(weights, dim=-1, dtype=torch.float64)
    targets = numbers.unsqueeze(1) * cumulative[:, -1:]
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1, keepdim=True)
    return torch.minimum((cumulative <= targets).sum(dim=-1, keepdim=True), last)
