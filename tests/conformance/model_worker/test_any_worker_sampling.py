"""How tokens are chosen: repeatable by the seed, the same wherever a request runs, and as the parameters say.

Equal tokens are asked of requests that are computed in different batches and chunks. In float32 their logits differ in
the last bits; a service in a narrower type may choose another of two tokens that are nearly equally likely.
"""

import json
import re

import pytest
from worker_calls import Answer, Asker, Sample

from octavo.worker.v1 import sampling_pb2, worker_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.model]

SEEDED = {"temperature": 1.0, "seed": 11}


def tokens_of(answer: Answer) -> list[list[int]]:
    return [answer.samples[index].tokens for index in sorted(answer.samples)]


def test_a_seed_repeats_and_is_told(asker: Asker) -> None:
    ids = asker.prompt()
    first, second = (asker.ask(ids, 16, sampling=SEEDED, salt=asker.apart()) for _ in range(2))
    assert first.started.seed == 11
    assert first.tokens == second.tokens
    assert len({tuple(asker.ask(ids, 16, sampling={"temperature": 1.0, "seed": seed}).tokens) for seed in range(4)}) > 1


def test_a_seed_that_the_worker_drew_repeats_too(asker: Asker) -> None:
    ids = asker.prompt()
    drawn = asker.ask(ids, 16, sampling={"temperature": 1.0})
    again = asker.ask(ids, 16, sampling={"temperature": 1.0, "seed": drawn.started.seed})
    assert again.tokens == drawn.tokens


def test_greedy_needs_no_seed(asker: Asker) -> None:
    ids = asker.prompt()
    greedy = asker.ask(ids, 16).tokens
    for sampling in ({"seed": 1}, {"temperature": 1e-6, "seed": 2}, {"temperature": 1.0, "top_k": 1, "seed": 3}):
        assert asker.ask(ids, 16, sampling=sampling).tokens == greedy, sampling


def test_company_changes_nothing(asker: Asker) -> None:
    ids = asker.prompt()
    alone = asker.ask(ids, 16, n=2, sampling=SEEDED, salt=asker.apart())
    others = [asker.open(asker.prompt(20), 24, sampling={"temperature": 1.0}) for _ in range(4)]
    among = asker.ask(ids, 16, n=2, sampling=SEEDED, salt=asker.apart())
    assert tokens_of(among) == tokens_of(alone)
    assert [len(Answer(other).tokens) for other in others] == [24] * 4


@pytest.mark.parametrize("n", [1, 2])
def test_a_resumed_request_goes_on_exactly(asker: Asker, n: int) -> None:
    ids = asker.prompt()
    whole = asker.ask(ids, 16, n=n, sampling=SEEDED)
    begun = [worker_pb2.ResumedSample(index=index, token_ids=whole.samples[index].tokens[:5]) for index in range(n)]
    resume = worker_pb2.Resume(seed=whole.started.seed, samples=begun)
    # Its own seed is overruled by that of the first worker.
    rest = asker.ask(ids, 16, n=n, sampling={"temperature": 1.0, "seed": 99}, resume=resume, salt=asker.apart())
    assert tokens_of(rest) == [tokens[5:] for tokens in tokens_of(whole)]
    assert {sample.reason for sample in rest.samples.values()} == {"LENGTH"}


def test_a_sample_that_is_missing_in_a_resume_starts_anew(asker: Asker) -> None:
    ids = asker.prompt()
    whole = asker.ask(ids, 8, n=2, sampling=SEEDED)
    begun = [worker_pb2.ResumedSample(index=1, token_ids=whole.samples[1].tokens[:3])]
    rest = asker.ask(ids, 8, n=2, sampling=SEEDED, resume=worker_pb2.Resume(seed=11, samples=begun))
    assert tokens_of(rest) == [whole.samples[0].tokens, whole.samples[1].tokens[3:]]


def test_logprobs_are_of_the_chosen_token_and_the_best(asker: Asker) -> None:
    sample = asker.ask(asker.prompt(), 12, logprobs=3).only
    assert [entry.token_id for entry in sample.logprobs] == sample.tokens
    for entry in sample.logprobs:
        assert len(entry.top) == 3
        assert [one.logprob for one in entry.top] == sorted((one.logprob for one in entry.top), reverse=True)
        assert entry.logprob == pytest.approx(entry.top[0].logprob, abs=1e-5), "greedy takes the most likely one"
        assert entry.logprob <= 0
    assert sample.finished is not None
    assert sample.finished.cumulative_logprob == pytest.approx(sum(one.logprob for one in sample.logprobs), abs=1e-3)
    assert not asker.ask(asker.prompt(), 2).only.logprobs
    assert [len(entry.top) for entry in asker.ask(asker.prompt(), 2, logprobs=0).only.logprobs] == [0, 0]


def test_logprobs_are_those_before_temperature_and_filters(asker: Asker) -> None:
    ids = asker.prompt()
    plain = asker.ask(ids, 1, logprobs=1).only.logprobs[0]
    bent = asker.ask(ids, 1, logprobs=1, sampling={"temperature": 3.0, "top_k": 1, "seed": 1}).only.logprobs[0]
    assert (bent.token_id, bent.logprob) == (plain.token_id, pytest.approx(plain.logprob, abs=1e-4))


def test_prompt_logprobs_are_those_that_the_tokens_had(asker: Asker) -> None:
    ids = asker.prompt()
    sample = asker.ask(ids, 8, logprobs=1).only
    answer = asker.ask([*ids, *sample.tokens], 1, prompt_logprobs=1)
    told = answer.started.prompt_logprobs
    assert [entry.token_id for entry in told] == [*ids, *sample.tokens][1:]
    own = [entry.logprob for entry in told[-8:]]
    assert own == pytest.approx([entry.logprob for entry in sample.logprobs], abs=1e-3)
    # The prompt is computed whole, also when it is known.
    assert asker.ask([*ids, *sample.tokens], 1, prompt_logprobs=0).started.cached_tokens == 0


def test_biases_force_and_forbid(asker: Asker) -> None:
    ids = asker.prompt()
    first = asker.ask(ids, 1).tokens[0]
    forced = asker.prompt(1)[0]
    assert asker.ask(ids, 3, sampling={"logit_bias": {forced: 100.0}}).tokens == [forced] * 3
    assert first not in asker.ask(ids, 6, sampling={"logit_bias": {first: -100.0}}).tokens


def test_bad_words_are_never_completed(asker: Asker) -> None:
    ids = asker.prompt()
    free = asker.ask(ids, 8).tokens
    words = [sampling_pb2.TokenIds(ids=free[2:4]), sampling_pb2.TokenIds(ids=free[:1])]
    kept = asker.ask(ids, 8, sampling={"bad_words": words}).tokens
    assert free[0] not in kept
    assert free[2:4] not in [kept[at : at + 2] for at in range(7)]


def test_penalties_weaken_what_was_seen(asker: Asker) -> None:
    ids = asker.prompt()
    once = asker.ask(ids, 12, sampling={"logit_bias": {ids[0]: 100.0}}).tokens
    assert once == [ids[0]] * 12
    # 100 above the others, less 2 for each time it came: after a while it loses, if others are near enough.
    tired = asker.ask(ids, 12, sampling={"logit_bias": {ids[0]: 100.0}, "repetition_penalty": 1_000.0}).tokens
    assert tired != once


def test_the_best_of_several_is_one_of_them(asker: Asker) -> None:
    ids, sampling = asker.prompt(), {"temperature": 1.0, "seed": 5}
    every = asker.ask(ids, 6, n=3, logprobs=0, sampling=sampling)
    best = max(every.samples.values(), key=_score)
    assert asker.ask(ids, 6, best_of=3, sampling=sampling).tokens == best.tokens


def _score(sample: Sample) -> float:
    assert sample.finished is not None
    return sample.finished.cumulative_logprob


def test_a_beam_search_gives_distinct_texts(asker: Asker) -> None:
    answer = asker.ask(asker.prompt(), 5, n=2, beam_search=sampling_pb2.BeamSearch(width=3))
    assert len(set(map(tuple, tokens_of(answer)))) == 2
    assert {len(tokens) for tokens in tokens_of(answer)} == {5}


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"regex": "[ab]{3}-[0-9]{2}"}, r"[ab]{3}-[0-9]{2}"),
        ({"json_schema": json.dumps({"type": "array", "items": {"type": "boolean"}, "maxItems": 2})}, r"\[.*\]"),
    ],
)
def test_a_grammar_holds(asker: Asker, grammar: dict[str, str], pattern: str) -> None:
    """Read with the tokenizer that the worker hands out."""
    tokenizers = pytest.importorskip("tokenizers")
    files = tokenizer_files(asker)
    if "tokenizer.json" not in files or not asker.model.eos_token_ids:
        pytest.skip("the model has no tokenizer.json or no end-of-sequence token")
    sampling = {"temperature": 1.0, "seed": 4, "grammar": sampling_pb2.Grammar(**grammar)}
    sample = asker.ask(asker.prompt(), 200, sampling=sampling, stop={"ignore_eos": False}).only
    text = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode()).decode(sample.tokens)
    assert sample.reason == "STOP"
    assert re.fullmatch(pattern, text), text
    if "json_schema" in grammar:
        assert all(isinstance(one, bool) for one in json.loads(text))


def tokenizer_files(asker: Asker) -> dict[str, bytes]:
    """The files, put together as their pieces come."""
    files: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    last = ""
    for piece in asker.stub.GetTokenizer(worker_pb2.GetTokenizerRequest(), timeout=60):
        assert piece.name == last or piece.name not in files, "one file after another"
        assert "/" not in piece.name
        last = piece.name
        files[last] = files.get(last, b"") + piece.data
        sizes[last] = piece.size
    assert {name: len(data) for name, data in files.items()} == sizes
    return files
