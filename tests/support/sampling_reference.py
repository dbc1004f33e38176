"""Sampling as transformers does it, in float64, and rows to sample without an engine."""

from dataclasses import dataclass, field

import torch
import transformers.generation.logits_process as hf
from torch import Tensor

from model_worker.sampling.params import SamplingParams, StopConditions
from model_worker.sampling.state import RowState


@dataclass
class Row:
    """A sequence as the sampler sees it."""

    sampling: SamplingParams
    tokens: list[int] = field(default_factory=lambda: [0])
    prompt_length: int = 1
    stop: StopConditions = field(default_factory=StopConditions)
    sampler_state: RowState | None = None


def processed(logits: Tensor, row: Row) -> Tensor:
    """What transformers' processors, and the formulas of the penalties it has not, make of ``[vocab]`` logits."""
    params = row.sampling
    ids = torch.tensor([row.tokens])
    scores = logits.double().unsqueeze(0)
    if params.logit_bias:
        scores = hf.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params.logit_bias])(ids, scores)
    if params.repetition_penalty != 1.0:
        scores = hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    for token in range(scores.shape[-1]):
        count = row.tokens[row.prompt_length :].count(token)
        scores[0, token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    if params.bad_words:
        scores = hf.NoBadWordsLogitsProcessor([list(word) for word in params.bad_words])(ids, scores)
    if row.stop.min_tokens and row.stop.token_ids:
        minimum = hf.MinNewTokensLengthLogitsProcessor(
            row.prompt_length, row.stop.min_tokens, sorted(row.stop.token_ids)
        )
        scores = minimum(ids, scores)
    return scores.squeeze(0)


def distribution(scores: Tensor, params: SamplingParams) -> Tensor:
    """float64 ``[vocab]``: what transformers' warpers leave of processed scores, as probabilities."""
    ids = torch.tensor([[0]])
    warped = hf.TemperatureLogitsWarper(params.temperature)(ids, scores.double().unsqueeze(0))
    if params.top_k:
        warped = hf.TopKLogitsWarper(params.top_k)(ids, warped)
    if params.top_p < 1:
        warped = hf.TopPLogitsWarper(params.top_p)(ids, warped)
    if params.min_p:
        warped = hf.MinPLogitsWarper(params.min_p)(ids, warped)
    if params.typical_p < 1:
        warped = hf.TypicalLogitsWarper(params.typical_p)(ids, warped)
    return torch.softmax(warped, dim=-1).squeeze(0)
