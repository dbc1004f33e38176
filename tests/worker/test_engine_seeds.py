"""Seeded sampling on the engine: a sample draws the same tokens whatever happens around it.

Alone, in a batch, after preemption of either kind, and resumed on another engine from the prompt and the tokens so far;
one sample or four; drawn freely, through filters and penalties, and within a grammar.
"""

import re
from typing import Any

import pytest
from byte_vocabulary import END, VOCAB, byte_tokenizer
from engine_lab import LabModel, Sample, Unpriced, request
from tiny_checkpoints import tiny_checkpoint

from octavo.worker.v1 import sampling_pb2, worker_pb2

pytestmark = pytest.mark.model

TOKENS = 40
PROMPT = [(31 * place + 7) % 250 for place in range(21)]
OTHER = [(17 * place + 3) % 250 for place in range(53)]
# Forty characters at least, of which no token has more than five, and an end.
WORDS = r"([a-z]{3}(true|false|null|,)){10,}\."

HOW: dict[str, dict[str, Any]] = {
    "free": {},
    "filters and penalties": {
        "top_k": 60,
        "top_p": 0.97,
        "min_p": 0.001,
        "typical_p": 0.95,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {5: 3.0, 9: -5.0},
        "bad_words": [sampling_pb2.TokenIds(ids=[11]), sampling_pb2.TokenIds(ids=[5, 6])],
    },
    "grammar": {"frequency_penalty": 0.2, "grammar": sampling_pb2.Grammar(regex=WORDS)},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LabModel:
    folder = tiny_checkpoint("llama", tmp_path_factory.mktemp("bytes"), vocab_size=VOCAB, eos_token_id=END)
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str())
    return LabModel(folder)


def asked(how: str, n: int, seed: int = 7, **fields: Any) -> worker_pb2.GenerateRequest:
    return worker_pb2.GenerateRequest(
        token_ids=PROMPT,
        sampling=sampling_pb2.SamplingParams(temperature=1.1, seed=seed, **HOW[how]),
        stop=sampling_pb2.StopConditions(max_tokens=TOKENS, ignore_eos=how != "grammar"),
        n=n,
        **fields,
    )


def drawn(samples: list[Sample]) -> list[list[int]]:
    return [one.tokens for one in samples]


def rest_of(texts: list[list[int]], n: int) -> tuple[worker_pb2.Resume, list[list[int]]]:
    """What another engine is told of samples that have got to different places, and what it is to draw."""
    begun = [text[: 3 + 3 * index] for index, text in enumerate(texts)]
    if n > 1:
        begun[0] = []  # of several, one had not begun
    samples = [worker_pb2.ResumedSample(index=index, token_ids=ids) for index, ids in enumerate(begun) if ids]
    rest = [text[len(ids) :] for text, ids in zip(texts, begun, strict=True)]
    return worker_pb2.Resume(seed=7, samples=samples), rest


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("how", HOW)
def test_a_sample_draws_the_same_tokens_everywhere(model: LabModel, how: str, n: int) -> None:
    with model.engine(200) as lab:
        texts = drawn(*lab.generate(asked(how, n)))
        ((first,),) = lab.generate(asked(how, 1))
    assert len(set(map(tuple, texts))) == n
    assert first.tokens == texts[0]  # a sample does not depend on how many there are

    others = [request(OTHER, TOKENS, temperature=1.0, seed=1), asked(how, 2, seed=8), asked("grammar", 1, seed=9)]
    with model.engine(200, max_chunk=11) as lab:
        *_, among_others = lab.generate(*others, asked(how, n))
    assert drawn(among_others) == texts

    resume, rest = rest_of(texts, n)
    with model.engine(200) as lab:
        (resumed,) = lab.generate(asked(how, n, seed=99, resume=resume))
    assert drawn(resumed) == rest

    # The other text takes 6 blocks of 16 in the end, the samples share one and have 3 each beside it. With two less
    # than that, all can begin, or go on, and the samples, which came later, have to give way.
    for host_blocks in (0, 64):
        for begun, expected in ((None, texts), (resume, rest)):
            with model.engine(6 + 1 + 3 * n - 2, host_blocks=host_blocks, manager=Unpriced()) as lab:
                _, preempted = lab.generate(request(OTHER, TOKENS), asked(how, n, resume=begun))
            assert drawn(preempted) == expected
            for one in preempted:
                assert (one.timeline.recomputes > 0, one.timeline.swaps > 0) == (not host_blocks, bool(host_blocks))


def test_texts_within_the_grammar_are_what_was_compared(model: LabModel) -> None:
    with model.engine(200) as lab:
        (samples,) = lab.generate(asked("grammar", 4))
    texts = [byte_tokenizer().decode(one.tokens) for one in samples]
    assert all(re.fullmatch(r"([a-z]{3}(true|false|null|,))+.*", text) for text in texts), texts
