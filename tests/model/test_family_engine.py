"""Every family on the engine, fp32: whatever happens to a sequence there, its text and logits are transformers' own.

Per family, block size and kind of preemption, on one pool:

    alone       A, cold
    together    A, found in the cache; B; C, which arrives last. They decode side by side until the pool, which holds
                them with 15 tokens each, is full: C gives way in the middle of its text and comes back
    next turn   C's prompt and text as a prompt, of which blocks are found that were generated after C came back
"""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import transformers
from engine_lab import LabModel, Sample, Unpriced, request
from tiny_checkpoints import FAMILIES, NATIVE, VOCAB, tiny_checkpoint

from model_worker.engine.batch import Batch
from model_worker.engine.host_tier import NoHostTier

pytestmark = pytest.mark.model

# Of the general path: learned positions with an offset, parallel blocks with rotary positions in part of a head, and
# windows in every other layer. The others, and block sizes of other kinds, are for the long runs.
IN_CI = (*NATIVE, "opt", "gpt_neox", "cohere2")
CASES = [
    pytest.param(name, block_size, marks=[] if name in IN_CI and block_size in (16, 5) else [pytest.mark.soak])
    for name in FAMILIES
    for block_size in (16, 5, 1, 7, 32)
]
LENGTHS = (53, 17, 40)
NEW_TOKENS = 32
BOUND = 1e-4
HOST_TOKENS = 512

_draw = random.Random(11)
PROMPTS = [[_draw.randrange(3, VOCAB) for _ in range(length)] for length in LENGTHS]


class Text(NamedTuple):
    """A greedy continuation by transformers and the log-probabilities at each of its positions."""

    tokens: list[int]
    logprobs: torch.Tensor
    """float64 ``[tokens, vocab]``."""


class Family(NamedTuple):
    """A tiny checkpoint and what transformers makes of the prompts."""

    model: LabModel
    texts: list[Text]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    @cache
    @torch.inference_mode()
    def of(name: str) -> Family:
        folder = tiny_checkpoint(name, tmp_path_factory.mktemp(name))
        # The last prompt is the one whose conversation goes on.
        lengths = (NEW_TOKENS, NEW_TOKENS, 2 * NEW_TOKENS)
        return Family(
            LabModel(folder), [_continued(folder, ids, more) for ids, more in zip(PROMPTS, lengths, strict=True)]
        )

    return of


def _continued(folder: Path, ids: list[int], more: int) -> Text:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.generation_config.eos_token_id = None
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=more,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return Text(out.sequences[0, len(ids) :].tolist(), torch.log_softmax(torch.cat(out.logits).double(), dim=-1))


def assert_equal(sample: Sample, text: Text, start: int = 0) -> None:
    """``sample`` is ``text`` from ``start`` on, and so are the log-probabilities of the 20 most likely tokens."""
    assert sample.tokens == text.tokens[start : start + NEW_TOKENS]
    assert len(sample.logprobs) == NEW_TOKENS
    for position, entry in enumerate(sample.logprobs, start):
        ids, values = zip(*entry.top, strict=True)
        assert (torch.tensor(values) - text.logprobs[position, list(ids)]).abs().max() < BOUND


@pytest.mark.parametrize("kind", ["recompute", "swap"])
@pytest.mark.parametrize(("name", "block_size"), CASES)
def test_text_and_logits_equal_transformers(
    name: str, block_size: int, kind: str, family: Callable[[str], Family]
) -> None:
    model, texts = family(name)
    a, b, c = (request(ids, NEW_TOKENS, logprobs=20) for ids in PROMPTS)
    next_turn = request(PROMPTS[2] + texts[2].tokens[:NEW_TOKENS], NEW_TOKENS, logprobs=20)
    pool = {
        "num_blocks": sum(-(-(length + 15) // block_size) for length in LENGTHS),
        "block_size": block_size,
        "host_blocks": HOST_TOKENS // block_size if kind == "swap" else 0,
    }
    with model.engine(**pool, max_chunk=20, manager=Unpriced()) as lab:
        ((alone,),) = lab.generate(a)
        (found,), (beside,), (victim,) = lab.generate(a, b, c)
        preemptions, swaps = lab.engine.statistics.preemptions, lab.engine.statistics.swaps
        ((later,),) = lab.generate(next_turn)
    for sample, text in zip((alone, found, beside, victim), (texts[0], *texts), strict=True):
        assert_equal(sample, text)
    assert_equal(later, texts[2], NEW_TOKENS)
    # Nobody else gave way, and nobody in the other way.
    assert preemptions > 0
    assert swaps == (preemptions if kind == "swap" else 0)
    assert (victim.timeline.recomputes, victim.timeline.swaps) == (preemptions - swaps, swaps)
    assert victim.timeline.mixed_steps > 0
    # Full blocks are found, of a prompt all but its last token, of a text all but its last one, which nobody computed.
    whole_blocks = [tokens // block_size * block_size for tokens in (0, LENGTHS[0] - 1, LENGTHS[2] + NEW_TOKENS - 1)]
    assert [one.timeline.cached_tokens for one in (alone, found, later)] == whole_blocks


class Forgetful(NoHostTier):
    """Says that blocks moved and moves none."""

    def run(self, batch: Batch) -> None:
        pass


def test_blocks_that_come_back_wrong_are_noticed(family: Callable[[str], Family]) -> None:
    """The control: C comes back to blocks in which others have written meanwhile."""
    model, texts = family("llama")
    pool = {"num_blocks": sum(-(-(length + 15) // 5) for length in LENGTHS), "block_size": 5, "host_blocks": 100}
    with model.engine(**pool, manager=Unpriced(), swaps=Forgetful()) as lab:
        _, (beside,), (victim,) = lab.generate(*(request(ids, NEW_TOKENS, logprobs=20) for ids in PROMPTS))
    assert_equal(beside, texts[1])
    with pytest.raises(AssertionError):
        assert_equal(victim, texts[2])
