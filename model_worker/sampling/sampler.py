"""Choosing one token per row of logits.

The order is that of transformers: temperature, top-k, top-p, min-p, each on what the one before left. The draw inverts
the cumulative distribution at one uniform number from a counter-based generator (Philox 4x64, Salmon et al., SC 2011)
keyed by (seed, sample index) and counting positions: it depends on nothing else, so neither the batch nor a preemption
nor another worker changes it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels import argmax
from model_worker.sampling.params import SamplingParams


def uniform(seed: int, index: int, position: int) -> float:
    """The number in [0, 1) drawn for ``position`` of sample ``index``; 53 random bits."""
    # As arrays: numpy makes floats of lists that hold a number beyond 2**63.
    key = np.array([seed, index], dtype=np.uint64)
    generator = np.random.Philox(key=key, counter=np.array([position, 0, 0, 0], dtype=np.uint64))
    return float(int(generator.random_raw()) >> 11) * 2.0**-53


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution a token is drawn from.

    Args:
        logits: ``[vocab]``, any float dtype.
        params: temperature above zero.

    Returns:
        ``[vocab]`` float64, sums to 1; zero where a filter dropped the token.
    """
    scaled = logits.double() / params.temperature
    weights = torch.softmax(scaled, dim=-1)
    if 0 < params.top_k < weights.numel():
        threshold = torch.topk(weights, params.top_k).values[-1]
        weights = torch.where(weights >= threshold, weights, 0.0)
        weights /= weights.sum()
    if params.top_p < 1.0:
        ordered, order = torch.sort(weights, descending=True, stable=True)
        # A token stays while the tokens before it have not reached top_p; so the first one always stays.
        before = torch.cumsum(ordered, dim=-1) - ordered
        weights = weights.index_fill(0, order[before >= params.top_p], 0.0)
        weights /= weights.sum()
    if params.min_p > 0.0:
        weights = torch.where(weights >= params.min_p * weights.max(), weights, 0.0)
        weights /= weights.sum()
    return weights


def draw(logits: Tensor, params: SamplingParams, position: int) -> int:
    """One token for one row ``[vocab]``; ``position`` is the index the token will have in its sequence."""
    weights = probabilities(logits, params)
    cumulative = torch.cumsum(weights, dim=-1)
    target = uniform(params.seed, params.index, position) * float(cumulative[-1])
    # right=True skips tokens of weight zero: the first entry strictly above the target has weight.
    token = int(torch.searchsorted(cumulative, torch.tensor(target, dtype=cumulative.dtype), right=True))
    return min(token, int(torch.nonzero(weights)[-1]))


def sample(
    logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int], banned: Sequence[Sequence[int]]
) -> list[int]:
    """One token per row.

    Args:
        logits: ``[rows, vocab]`` float32; changed in place where tokens are banned.
        params: one per row.
        positions: the index each token will have in its sequence.
        banned: token ids that may not be chosen, one (possibly empty) sequence per row.

    Returns:
        Token ids, one per row.
    """
    for row, tokens in enumerate(banned):
        if tokens:
            logits[row, list(tokens)] = -torch.inf
    chosen_tokens: list[int] = argmax(logits).tolist()
    for row, chosen in enumerate(params):
        if not chosen.greedy:
            chosen_tokens[row] = draw(logits[row], chosen, positions[row])
    return chosen_tokens
