"""Choosing one token per row of logits, for a whole batch at once.

The order is that of transformers:

    logits -> logit bias -> penalties -> bad words -> min tokens -> grammar      on single logits, for greedy rows too
           -> temperature -> top-k -> top-p -> min-p -> typical-p -> draw        each on what the one before left

A draw chooses at numbers that depend on (seed, sample index, position) alone. All arithmetic is row by row, so that a
row gets the same token in any batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels import argmax
from model_worker.sampling import filters
from model_worker.sampling.draw import draw_from_few, draw_from_vocabulary
from model_worker.sampling.grammar import GrammarMask
from model_worker.sampling.logprobs import Logprobs
from model_worker.sampling.penalties import Penalties
from model_worker.sampling.philox import uniforms
from model_worker.sampling.processors import LogitsProcessor, Processors, SampledRow
from model_worker.sampling.results import Sampled
from model_worker.sampling.token_rules import BadWords, LogitBias, MinTokens

NOT_A_NUMBER = "the model gave logits that are no finite numbers"
ALL_BANNED = "no token is left to choose by "


class Sampler:
    """Samples rows; what it remembers of a sequence lies in the sequence.

    Args:
        more: processors that apply after the built-in ones.
    """

    def __init__(self, more: Sequence[LogitsProcessor[Any]] = ()) -> None:
        self._processors: Processors[Any] = Processors(
            [LogitBias(), Penalties(), BadWords(), MinTokens(), GrammarMask(), *more]
        )

    def sample(self, logits: Tensor, rows: Sequence[SampledRow]) -> list[Sampled]:
        """One outcome per row.

        A row whose logits hold NaN or +inf, or no finite number once the processors are through, has a problem; the
        others do not notice.

        Args:
            logits: float32 ``[rows, vocab]``; may be changed in place.
            rows: the sequence of each; the token chosen is its next.
        """
        logits = logits.contiguous()
        wanting = [place for place, row in enumerate(rows) if row.sampling.top_logprobs is not None]
        logprobs = None
        if wanting:
            tops = [rows[place].sampling.top_logprobs or 0 for place in wanting]
            logprobs = Logprobs.of(logits if len(wanting) == len(rows) else logits[wanting], tops)
        self._processors.apply(logits, rows)
        tokens = argmax(logits)
        highest = logits.gather(1, tokens.unsqueeze(1))
        problems = _problems(highest, rows)
        drawing = [place for place, row in enumerate(rows) if not row.sampling.greedy and place not in problems]
        if drawing:
            _draw(tokens, logits, highest, drawing, rows)
        sampled = [Sampled(token) for token in tokens.tolist()]
        if logprobs is not None:
            for place, entry in zip(wanting, logprobs.at(tokens[wanting]), strict=True):
                sampled[place] = Sampled(entry.token, entry)
        for place, problem in problems.items():
            sampled[place] = Sampled(0, problem=problem)
        return sampled


def _problems(highest: Tensor, rows: Sequence[SampledRow]) -> dict[int, str]:
    """Rows whose largest logit, NaN counting as the largest, is not finite."""
    return {
        place: _banned(rows[place]) if value == -torch.inf else NOT_A_NUMBER
        for place, (value,) in enumerate(highest.tolist())
        if not -torch.inf < value < torch.inf
    }


def _banned(row: SampledRow) -> str:
    """Why a row has no token left: the rules that it has, or else its logits."""
    sampling, stop = row.sampling, row.stop
    rules = {
        "logit_bias": bool(sampling.logit_bias),
        "bad_words": bool(sampling.bad_words),
        "min_tokens": bool(stop.token_ids) and len(row.tokens) - row.prompt_length < stop.min_tokens,
        "the grammar": sampling.grammar is not None,
    }
    had = [name for name, has in rules.items() if has]
    return ALL_BANNED + " and ".join(had) if had else NOT_A_NUMBER


def _draw(tokens: Tensor, logits: Tensor, highest: Tensor, places: list[int], rows: Sequence[SampledRow]) -> None:
    """Set ``tokens`` at the places where one is drawn; what is left of ``logits`` is of no use."""
    params = {place: rows[place].sampling for place in places}
    numbers = torch.from_numpy(
        uniforms(
            [one.seed for one in params.values()],
            [one.index for one in params.values()],
            [len(rows[place].tokens) for place in places],
        )
    ).to(logits.device)
    of_place = dict(zip(places, range(len(places)), strict=True))
    filtered = [place for place in places if params[place].filtered]
    free = [place for place in places if not params[place].filtered]
    if filtered:
        columns = filters.Columns.of([params[place] for place in filtered], highest[filtered], logits.shape[-1])
        kept = filters.keep(_rows(logits, filtered), columns)
        at = numbers[[of_place[place] for place in filtered]]
        tokens[filtered] = draw_from_few(kept.ids, kept.weights, at, logits.shape[-1])
    if free:
        temperatures = torch.tensor([[params[place].temperature] for place in free], device=logits.device)
        # The largest is subtracted first: a small temperature overflows downwards only.
        weights = _rows(logits, free).sub_(highest[free]).div_(temperatures).exp_()
        tokens[free] = draw_from_vocabulary(weights, numbers[[of_place[place] for place in free]])


def _rows(logits: Tensor, places: list[int]) -> Tensor:
    return logits if len(places) == len(logits) else logits[places]
