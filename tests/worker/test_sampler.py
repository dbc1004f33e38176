"""The sampler as a whole: batches, resumption, log-probabilities, and rows that cannot be sampled."""

import pytest
import torch
from sampling_reference import Row
from torch import Tensor

from model_worker.sampling.params import SamplingParams, StopConditions
from model_worker.sampling.sampler import ALL_BANNED, NOT_A_NUMBER, Sampler

VOCAB = 700

MIXED = [
    SamplingParams(0),
    SamplingParams(0.8, seed=1),
    SamplingParams(1.1, top_k=40, seed=2),
    SamplingParams(1.0, top_p=0.9, seed=3),
    SamplingParams(0.9, min_p=0.02, seed=4, index=3),
    SamplingParams(1.2, typical_p=0.8, seed=2**64 - 1),
    SamplingParams(0, repetition_penalty=1.4, top_logprobs=2),
    SamplingParams(
        1.3, 90, 0.95, 0.001, seed=6, typical_p=0.9, repetition_penalty=1.2, presence_penalty=0.4,
        frequency_penalty=0.3, logit_bias=((5, 4.0),), bad_words=((6,), (5, 7)), top_logprobs=3,
    ),
]  # fmt: skip


def model(tokens: list[int]) -> Tensor:
    """A language model of these tests: logits that depend on the last two tokens."""
    generator = torch.Generator().manual_seed(tokens[-1] * VOCAB + tokens[-2])
    return torch.randn(VOCAB, generator=generator) * 3


def generate(rows: list[Row], steps: int) -> None:
    """``steps`` tokens for all rows, together."""
    sampler = Sampler()
    for _ in range(steps):
        sampled = sampler.sample(torch.stack([model(row.tokens) for row in rows]), rows)
        for row, one in zip(rows, sampled, strict=True):
            assert not one.problem
            row.tokens.append(one.token)


def fresh() -> list[Row]:
    return [Row(params, [3, 5, place], 3) for place, params in enumerate(MIXED)]


@pytest.mark.unit
def test_a_row_draws_the_same_alone_in_a_batch_after_a_pause_and_resumed_elsewhere() -> None:
    together = fresh()
    generate(together, 12)
    assert len({tuple(row.tokens[3:]) for row in together}) == len(MIXED)
    for place, row in enumerate(together):
        alone = fresh()[place]
        generate([alone], 12)
        assert alone.tokens == row.tokens
        # A preempted sequence keeps its state and comes back into another batch; a resumed one has tokens alone.
        preempted = fresh()[place]
        generate([preempted], 5)
        others = fresh()
        generate([*others[:2], preempted, *others[3:]], 7)
        assert preempted.tokens == row.tokens
        resumed = Row(MIXED[place], row.tokens[:8], 3)
        generate([resumed], 7)
        assert resumed.tokens == row.tokens


@pytest.mark.unit
@pytest.mark.parametrize("temperature", [0.0, 1e-8, 9e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    assert Sampler().sample(torch.tensor([[1.0, 3.0, 2.0]]), [Row(SamplingParams(temperature))])[0].token == 1


@pytest.mark.unit
@pytest.mark.parametrize("temperature", [1e-4, 2.0, 1e4])
def test_extreme_temperatures_give_tokens(temperature: float) -> None:
    rows = [Row(SamplingParams(temperature, seed=seed)) for seed in range(300)]
    tokens = {one.token for one in Sampler().sample(torch.tensor([[1e4, -1e4, 0.0, -torch.inf]] * 300), rows)}
    # At 1e-4 and 2 the first token has all the weight; at 1e4 the three have e, 1/e and 1.
    assert tokens == ({0, 1, 2} if temperature == 1e4 else {0})


@pytest.mark.unit
def test_samples_of_one_seed_differ_by_their_index() -> None:
    rows = [Row(SamplingParams(seed=7, index=index), [0] * 9, 9) for index in range(4)]
    first = [one.token for one in Sampler().sample(torch.zeros(4, VOCAB), rows)]
    assert len(set(first)) == 4
    assert [one.token for one in Sampler().sample(torch.zeros(4, VOCAB), rows)] == first


@pytest.mark.unit
def test_a_row_without_numbers_fails_alone() -> None:
    logits = torch.stack([model([1, place]) for place in range(6)])
    greedy = [Row(SamplingParams(0)) for _ in range(6)]
    expected = [one.token for one in Sampler().sample(logits.clone(), greedy)]
    logits[1, 17] = torch.nan
    logits[2, 17] = torch.inf
    logits[3] = -torch.inf
    logits[5, :600] = -torch.inf  # some tokens ruled out by the model itself are no fault
    expected[5] = int(logits[5].argmax())
    for params in (SamplingParams(0, top_logprobs=1), SamplingParams(1.0, top_k=1), SamplingParams(1e-4)):
        sampled = Sampler().sample(logits.clone(), [Row(params) for _ in range(6)])
        assert [one.problem for one in sampled] == ["", NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, "", ""]
        assert [sampled[place].token for place in (0, 4, 5)] == [expected[place] for place in (0, 4, 5)]


@pytest.mark.unit
def test_rules_that_leave_no_token_are_named() -> None:
    end = StopConditions(frozenset({0}), 1)
    words = {"bad_words": tuple((token,) for token in range(1, 5))}
    early = Row(SamplingParams(**words), stop=end)
    biased = Row(SamplingParams(**words, logit_bias=((0, 1.0),)), stop=end)
    # One token was generated, so min_tokens forbids nothing any more.
    late = Row(SamplingParams(bad_words=(*words["bad_words"], (0,))), [0, 0], 1, stop=end)
    sampled = Sampler().sample(torch.zeros(3, 5), [early, biased, late])
    assert [one.problem.removeprefix(ALL_BANNED) for one in sampled] == [
        "bad_words and min_tokens",
        "logit_bias and bad_words and min_tokens",
        "bad_words",
    ]


@pytest.mark.unit
def test_log_probabilities_are_the_models_own() -> None:
    # Temperature, bias and penalties move what is drawn and not what is told.
    logits = torch.stack([model([2, place]) for place in range(3)])
    rows = [
        Row(SamplingParams(0, top_logprobs=4, logit_bias=((9, 100.0),))),
        Row(SamplingParams(0)),
        Row(SamplingParams(3.0, top_p=0.5, top_logprobs=0)),
    ]
    biased, silent, drawn = Sampler().sample(logits.clone(), rows)
    expected = torch.log_softmax(logits.double(), dim=-1)
    assert (biased.token, silent.logprobs) == (9, None)
    assert biased.logprobs is not None
    assert drawn.logprobs is not None
    assert biased.logprobs.logprob == pytest.approx(float(expected[0, 9]), abs=1e-5)
    values, ids = expected[0].topk(4)
    assert [token for token, _ in biased.logprobs.top] == ids.tolist()
    assert [value for _, value in biased.logprobs.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert drawn.logprobs.logprob == pytest.approx(float(expected[2, drawn.token]), abs=1e-5)
    assert drawn.logprobs.top == ()
