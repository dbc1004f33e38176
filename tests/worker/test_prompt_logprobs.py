"""Log-probabilities of a prompt, put together from chunks, whatever happens between them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from model_worker.engine.batch import Batch, Row
from model_worker.engine.runner import ModelRunner
from model_worker.engine.sequence import Sequence
from model_worker.sampling.params import SamplingParams, StopConditions

pytestmark = pytest.mark.unit

VOCAB = 40
PROMPT = [(7 * place + 3) % VOCAB for place in range(100)]


class Bigrams:
    """A model whose logits at a position are a fixed row of its token: no KV, so no pool is read."""

    def __init__(self) -> None:
        self.table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2))
        self.most_logits = 0

    def forward(self, token_ids: Tensor, positions: Tensor, slots: Tensor, *rest: Any) -> Tensor:
        logits_at = rest[-1]
        wanted = token_ids if logits_at is None else token_ids[logits_at]
        self.most_logits = max(self.most_logits, len(wanted))
        return self.table[wanted]


def sequence(top: int | None, seq: int = 1) -> Sequence:
    params = SamplingParams(0, prompt_logprobs=top, top_logprobs=top)
    return Sequence("r", list(PROMPT), len(PROMPT), 200, params, StopConditions(), 1, seq=seq, table=list(range(1, 14)))


def compute(runner: ModelRunner, one: Sequence, start: int, end: int, *others: Row) -> None:
    """One step for ``start <= position < end``, booked as the engine does."""
    row = Row(one, start, end, samples=end == len(one.tokens))
    output = runner.run(Batch(1, [*others, row], []))
    one.prompt_logprobs += output.prompt_logprobs.get(one.seq, ())
    if row.samples:
        one.tokens.append(output.sampled[one.seq].token)


def test_a_preempted_prompt_has_the_logprobs_of_an_undisturbed_one() -> None:
    """B40: 100 tokens in chunks of 32; preempted after the second chunk, found in the cache up to 48, and so on."""
    model = Bigrams()
    runner = ModelRunner(model, torch.zeros(14, 1, 2, 1, 16, 4), 16)
    undisturbed, disturbed = sequence(2), sequence(2)
    compute(runner, undisturbed, 0, 100)
    for start, end in ((0, 32), (32, 64)):
        compute(runner, disturbed, start, end)
    disturbed.lose_table()
    disturbed.table = undisturbed.table
    # Another row before it in the batch, which samples and wants nothing.
    other = sequence(None, seq=2)
    for start, end in ((48, 80), (80, 100), (100, 101)):
        compute(runner, disturbed, start, end, Row(other, 99, 100, samples=True))
    assert len(disturbed.prompt_logprobs) == len(PROMPT) - 1
    assert disturbed.prompt_logprobs == undisturbed.prompt_logprobs
    logprobs = torch.log_softmax(model.table.double(), dim=-1)
    for place, entry in enumerate(disturbed.prompt_logprobs):
        assert entry.token == PROMPT[place + 1]
        expected = logprobs[PROMPT[place]]
        assert entry.logprob == pytest.approx(float(expected[entry.token]), abs=1e-5)
        assert [token for token, _ in entry.top] == expected.topk(2).indices.tolist()


def test_a_forked_sample_leaves_the_prompt_to_the_first() -> None:
    runner = ModelRunner(Bigrams(), torch.zeros(14, 1, 2, 1, 16, 4), 16)
    forked = sequence(0)
    compute(runner, forked, 99, 100)
    assert forked.prompt_logprobs == []
    assert len(forked.tokens) == 101


def test_nobody_pays_for_logits_that_nobody_wants() -> None:
    model = Bigrams()
    runner = ModelRunner(model, torch.zeros(14, 1, 2, 1, 16, 4), 16)
    compute(runner, sequence(None), 0, 100)
    assert model.most_logits == 1
