"""What each sampler draws follows the distribution that a float64 reference gives it.

Per sampler: 20 seeds, 60,000 draws of each (200 samples of a request at 300 positions), Pearson's chi-squared test, and
Holm's correction for the 20. The control is the same test against the same distribution with the most likely token 5 %
less likely and the others in proportion. It must fail: of a probability p the shift adds 60,000 * (0.05 p)^2 /
(p (1 - p)) to the statistic, which is 50 for p = 0.25 and 150 for p = 0.5, where 40 is too much already.

Drawing from a whole vocabulary takes its time: there it is a quarter of the draws from a steeper distribution, in which
the most likely token has 0.74, so that the shift adds 107.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from byte_vocabulary import END, VOCAB, byte_tokenizer
from sampling_reference import Row, distribution, processed
from torch import Tensor

from model_worker.sampling import filters
from model_worker.sampling.draw import draw_from_few, draw_from_vocabulary
from model_worker.sampling.grammar import GrammarCompiler, GrammarMask
from model_worker.sampling.params import SamplingParams, StopConditions
from model_worker.sampling.penalties import Penalties
from model_worker.sampling.philox import uniforms
from model_worker.sampling.processors import Processors
from model_worker.sampling.sampler import Sampler
from model_worker.sampling.token_rules import BadWords, LogitBias, MinTokens

pytestmark = [pytest.mark.model, pytest.mark.unit]

# Chosen before any was tried.
SEEDS = [20_261_129 + 1_000_003 * number for number in range(20)]
SAMPLES, POSITIONS = 200, 300
PROCESSORS: Processors[Any] = Processors([LogitBias(), Penalties(), BadWords(), MinTokens(), GrammarMask()])
STEEP = torch.tensor([4.5, 2.6, 2.5, 1.9, 1.2, 1.0, 0.4, -0.3, -1.1, -1.7, -2.2, -3.0])
LOGITS = torch.tensor([3.0, 2.6, 2.5, 1.9, 1.2, 1.0, 0.4, -0.3, -1.1, -1.7, -2.2, -3.0])


class Case(NamedTuple):
    """A row to sample again and again, its logits, and those of them that its grammar leaves."""

    row: Row
    logits: Tensor
    allowed: list[int]
    whole: bool = False
    """Drawn from the whole vocabulary as the sampler does it; else, with the same outcome, from the tokens left."""


def plain(params: SamplingParams, stop: StopConditions | None = None) -> Callable[[], Case]:
    """A sequence whose prompt is [0, 4] and which went on with [2, 2, 6]."""
    row = Row(params, [0, 4, 2, 2, 6], 2, stop or StopConditions())
    return lambda: Case(row, LOGITS, list(range(len(LOGITS))))


def wide() -> Case:
    """A vocabulary of three blocks of sums, with its tokens where blocks begin and end."""
    logits = torch.full((520,), -torch.inf)
    logits[[0, 1, 100, 254, 255, 256, 257, 400, 511, 512, 513, 519]] = STEEP
    return Case(Row(SamplingParams(0.9)), logits, list(range(520)), whole=True)


def grammatical() -> Case:
    """Behind "x" comes one of six letters; what else is more likely may not."""
    tokenizer = byte_tokenizer()
    grammar = GrammarCompiler(tokenizer.to_str(), VOCAB, [END]).compile("regex", "x[a-f]")
    letters = [tokenizer.token_to_id(letter) for letter in "abcdef"]
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(4)) + 3
    logits[letters] = LOGITS[:6]
    return Case(Row(SamplingParams(1.1, grammar=grammar), [0, tokenizer.token_to_id("x")], 1), logits, letters)


SAMPLERS: dict[str, Callable[[], Case]] = {
    "temperature": lambda: Case(Row(SamplingParams(0.9)), STEEP, list(range(len(STEEP))), whole=True),
    "a wide vocabulary": wide,
    "top-k": plain(SamplingParams(1.2, top_k=5)),
    "top-p": plain(SamplingParams(1.0, top_p=0.8)),
    "min-p": plain(SamplingParams(1.0, min_p=0.1)),
    "typical-p": plain(SamplingParams(1.0, typical_p=0.6)),
    "repetition penalty": plain(SamplingParams(1.0, repetition_penalty=1.4)),
    "presence penalty": plain(SamplingParams(1.0, presence_penalty=0.9)),
    "frequency penalty": plain(SamplingParams(1.0, frequency_penalty=0.7)),
    "logit bias": plain(SamplingParams(1.0, logit_bias=((1, -2.0), (8, 3.5)))),
    "bad words": plain(SamplingParams(1.0, bad_words=((0,), (2, 6, 1), (2, 2, 3)))),
    "min tokens": plain(SamplingParams(1.0), StopConditions(frozenset({0, 3}), min_tokens=4)),
    "grammar": grammatical,
    "all together": plain(
        SamplingParams(
            1.5, 9, 0.93, 0.06, typical_p=0.85, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2,
            logit_bias=((9, 3.0),), bad_words=((6, 1),),
        ),
        StopConditions(frozenset({3}), min_tokens=4),
    ),
}  # fmt: skip


@cache
def numbers(seed: int) -> Tensor:
    """What the samples of a request draw, as the sampler keys it."""
    samples, positions = torch.arange(SAMPLES * POSITIONS) % SAMPLES, torch.arange(SAMPLES * POSITIONS) // SAMPLES
    return torch.from_numpy(uniforms([seed] * len(samples), samples.tolist(), positions.tolist()))


def expected(case: Case) -> Tensor:
    scores = torch.full(case.logits.shape, -torch.inf, dtype=torch.float64)
    scores[case.allowed] = processed(case.logits, case.row)[case.allowed]
    return distribution(scores, case.row.sampling)


def drawn(case: Case, at: Tensor) -> Tensor:
    """The token at each number: the way through the sampler for one row, but for its last step."""
    logits = case.logits.unsqueeze(0).clone()
    PROCESSORS.apply(logits, [dataclasses.replace(case.row, sampler_state=None)])
    highest, params = logits.amax(dim=-1, keepdim=True), case.row.sampling
    if params.filtered:
        kept = filters.keep(logits, filters.Columns.of([params], highest, logits.shape[-1]))
        some = (kept.ids.expand(len(at), -1), kept.weights.expand(len(at), -1))
        return draw_from_few(*some, at, logits.shape[-1])
    weights = torch.exp((logits - highest) / params.temperature)
    return draw_from_vocabulary(weights.expand(len(at), -1), at)


def counts(case: Case, seed: int) -> Tensor:
    at = numbers(seed)
    return torch.bincount(drawn(case, at[: len(at) // 4] if case.whole else at), minlength=len(case.logits))


def moved(wanted: Tensor, factor: float) -> Tensor:
    """The same distribution with its most likely token ``factor`` times as likely."""
    top = wanted.argmax()
    changed = wanted * (1 - factor * wanted[top]) / (1 - wanted[top])
    changed[top] = factor * wanted[top]
    return changed


def p_value(seen: Tensor, wanted: Tensor) -> float:
    """Of Pearson's chi-squared test; a token of probability zero must not have been seen."""
    possible = wanted > 0
    assert int(seen[~possible].sum()) == 0
    mean = wanted[possible] * seen.sum()
    statistic = ((seen[possible] - mean) ** 2 / mean).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def holm(p_values: list[float]) -> float:
    """The smallest p-value after Holm's correction for their number."""
    return min(1.0, len(p_values) * min(p_values))


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_follow_the_distribution(name: str) -> None:
    case = SAMPLERS[name]()
    wanted = expected(case)
    seen = [counts(case, seed) for seed in SEEDS]
    assert holm([p_value(one, wanted) for one in seen]) > 0.001
    assert holm([p_value(one, moved(wanted, 0.95)) for one in seen]) < 0.001


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_sampler_draws_these(name: str) -> None:
    """Whole, for 300 samples in one batch: what is tested above is what serves."""
    case = SAMPLERS[name]()
    row = case.row
    rows = [
        Row(dataclasses.replace(row.sampling, seed=SEEDS[0], index=index), row.tokens, row.prompt_length, row.stop)
        for index in range(300)
    ]
    sampled = [one.token for one in Sampler().sample(case.logits.expand(300, -1).clone(), rows)]
    at = torch.from_numpy(uniforms([SEEDS[0]] * 300, range(300), [len(row.tokens)] * 300))
    assert sampled == drawn(case, at).tolist()
    assert len(set(sampled)) > 2


def test_the_control_is_no_easier_than_it_says() -> None:
    """Half a percent, a tenth of the shift, goes unnoticed: it adds a hundredth, at most 1.5, to the statistic."""
    case = SAMPLERS["logit bias"]()
    wanted = moved(expected(case), 0.995)
    assert holm([p_value(counts(case, seed), wanted) for seed in SEEDS]) > 0.001
