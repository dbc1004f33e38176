"""Sampling over gRPC, by a real worker on the demo model: values and texts are those of transformers."""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
import transformers
from processes import Stack, running_stack
from tokenizers import Tokenizer

from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model]

PROMPT = [504, 1463, 282, 260, 3847, 7293, 8250, 351]
LONG = [token for place in range(20) for token in (504 + 31 * place, 1463 + 7 * place, 282, 260, 3847)]
TOKENS = 20


@pytest.fixture(scope="module")
def stack(demo_model: Path) -> Iterator[Stack]:
    flags = {"num-blocks": 200, "prefill-chunk": 32}
    with running_stack(demo_model, gateway=False, worker_flags=flags) as running:
        yield running


@pytest.fixture(scope="module")
def worker(stack: Stack) -> worker_pb2_grpc.WorkerServiceStub:
    return worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))


@pytest.fixture(scope="module")
def model(demo_model: Path) -> Any:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32)
    loaded.generation_config.eos_token_id = None
    return loaded


def generate(
    worker: worker_pb2_grpc.WorkerServiceStub, ids: list[int], max_tokens: int = TOKENS, **fields: Any
) -> list[worker_pb2.GenerateResponse]:
    sampling = fields.pop("sampling", {})
    stop = {"ignore_eos": True, "max_tokens": max_tokens, **fields.pop("stop", {})}
    request = worker_pb2.GenerateRequest(token_ids=ids, sampling=sampling, stop=stop, **fields)
    return list(worker.Generate(request, timeout=120))


def tokens(responses: list[worker_pb2.GenerateResponse], index: int = 0) -> list[int]:
    return [token for response in responses if response.index == index for token in response.token_ids]


def test_logprobs_of_prompt_and_answer_are_those_of_the_model(
    worker: worker_pb2_grpc.WorkerServiceStub, model: Any
) -> None:
    # 100 tokens in chunks of 32, cached by the first call: prompt log-probabilities are complete all the same.
    generate(worker, LONG, max_tokens=1)
    responses = generate(worker, LONG, 6, sampling={"temperature": 0.7, "seed": 3}, logprobs=3, prompt_logprobs=2)
    answer = tokens(responses)
    with torch.inference_mode():
        logits = model(torch.tensor([LONG + answer])).logits[0].double()
    expected = torch.log_softmax(logits, dim=-1)
    started = [response.started for response in responses if response.HasField("started")]
    assert len(started) == 1
    assert started[0].cached_tokens == 0
    entries = [*started[0].prompt_logprobs, *(entry for response in responses for entry in response.logprobs)]
    assert [entry.token_id for entry in entries] == (LONG + answer)[1:]
    for place, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(expected[place, entry.token_id]), abs=1e-3)
        values = expected[place].topk(2 if place < len(LONG) - 1 else 3).values.tolist()
        assert [one.logprob for one in entry.top] == pytest.approx(values, abs=1e-3)
    total = sum(entry.logprob for entry in entries[len(LONG) - 1 :])
    assert responses[-1].finished.cumulative_logprob == pytest.approx(total, abs=1e-5)
    # The request before has left its blocks to be found by others.
    assert generate(worker, LONG, max_tokens=1)[0].started.cached_tokens == 96


@pytest.mark.parametrize(
    ("sampling", "theirs"),
    [
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"logit_bias": {260: 4.0, 282: -100.0}}, {"sequence_bias": [[[260], 4.0], [[282], -100.0]]}),
    ],
    ids=["repetition", "bias"],
)
def test_greedy_text_with_processors_is_that_of_transformers(
    worker: worker_pb2_grpc.WorkerServiceStub, model: Any, sampling: dict[str, Any], theirs: dict[str, Any]
) -> None:
    ours = tokens(generate(worker, PROMPT, sampling={"temperature": 0, **sampling}))
    plain = tokens(generate(worker, PROMPT, sampling={"temperature": 0}))
    text = model.generate(torch.tensor([PROMPT]), max_new_tokens=TOKENS, do_sample=False, **theirs)
    assert ours == text[0, len(PROMPT) :].tolist()
    assert ours != plain


def test_bad_words_and_the_minimum_change_the_text_as_in_transformers(
    worker: worker_pb2_grpc.WorkerServiceStub, model: Any
) -> None:
    # Forbidden are two neighbours of the plain text and a later single token; then the plain text's tokens 2 and 6 stop
    # it, but not before 5 tokens.
    plain = tokens(generate(worker, PROMPT, sampling={"temperature": 0}))
    words = [plain[3:5], plain[9:10]]
    bad_words = [sampling_pb2.TokenIds(ids=word) for word in words]
    ours = tokens(generate(worker, PROMPT, sampling={"temperature": 0, "bad_words": bad_words}))
    text = model.generate(torch.tensor([PROMPT]), max_new_tokens=TOKENS, do_sample=False, bad_words_ids=words)
    assert ours == text[0, len(PROMPT) :].tolist()
    assert ours != plain
    stops = sorted({plain[2], plain[6]})
    responses = generate(worker, PROMPT, sampling={"temperature": 0}, stop={"stop_token_ids": stops, "min_tokens": 5})
    text = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=TOKENS, do_sample=False, min_new_tokens=5, eos_token_id=stops
    )
    assert tokens(responses) == text[0, len(PROMPT) :].tolist()


def test_seeded_samples_repeat_alone_in_a_batch_and_resumed(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    """B68: the same tokens alone, beside others, and from the middle on; without a seed, different ones."""
    sampling = {"temperature": 1.0, "top_p": 0.95, "frequency_penalty": 0.5, "seed": 7}
    alone = tokens(generate(worker, PROMPT, sampling=sampling))
    with ThreadPoolExecutor(6) as pool:
        others = [
            pool.submit(generate, worker, PROMPT, sampling={"temperature": 1.0, "typical_p": 0.9, "seed": seed})
            for seed in range(5)
        ]
        beside = tokens(pool.submit(generate, worker, PROMPT, sampling=sampling).result())
        assert len({tuple(tokens(other.result())) for other in others}) == 5
    assert beside == alone
    begun = worker_pb2.Resume(seed=7, samples=[worker_pb2.ResumedSample(token_ids=alone[:8])])
    assert tokens(generate(worker, PROMPT, sampling={**sampling, "seed": 99}, resume=begun)) == alone[8:]
    together = [generate(worker, PROMPT, 8, sampling={"temperature": 1.0, "seed": 7}, n=4) for _ in range(2)]
    first, second = ([tokens(responses, index) for index in range(4)] for responses in together)
    assert first == second
    assert len(set(map(tuple, first))) == 4
    unseeded = {tuple(tokens(generate(worker, PROMPT, 8))) for _ in range(3)}
    assert len(unseeded) > 1


@pytest.mark.parametrize(
    ("path", "sampling"),
    [
        ("sampling.logit_bias", {"logit_bias": {49_152: 1.0}}),
        ("sampling.logit_bias", {"logit_bias": {10**9: 1.0}}),
        ("sampling.logit_bias", {"logit_bias": {1: 101.0}}),
        ("sampling.logit_bias", {"logit_bias": {1: -101.0}}),
        ("sampling.logit_bias", {"logit_bias": {1: math.nan}}),
        ("sampling.bad_words", {"bad_words": [sampling_pb2.TokenIds(ids=[49_152])]}),
        ("sampling.bad_words", {"bad_words": [sampling_pb2.TokenIds()]}),
        ("sampling.typical_p", {"typical_p": 0.0}),
        ("sampling.repetition_penalty", {"repetition_penalty": 0.0}),
        ("sampling.presence_penalty", {"presence_penalty": 2.1}),
        ("sampling.frequency_penalty", {"frequency_penalty": math.nan}),
        ("sampling.temperature", {"temperature": -1.0}),
    ],
    ids=str,
)
def test_a_bad_sampling_field_is_named(
    worker: worker_pb2_grpc.WorkerServiceStub, path: str, sampling: dict[str, Any]
) -> None:
    """B64, B66."""
    with pytest.raises(grpc.RpcError) as caught:
        generate(worker, PROMPT, sampling=sampling)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert path in caught.value.details()


def test_a_grammar_binds_the_text(worker: worker_pb2_grpc.WorkerServiceStub, demo_model: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Rome", "Paris"]}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    }
    grammar = sampling_pb2.Grammar(json_schema=json.dumps(schema))
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    for seed in range(3):
        sampling = {"temperature": 1.5, "seed": seed, "grammar": grammar}
        responses = generate(worker, PROMPT, 60, sampling=sampling, stop={"ignore_eos": False})
        assert responses[-1].finished.reason == sampling_pb2.FINISH_REASON_STOP
        value = json.loads(tokenizer.decode(tokens(responses), skip_special_tokens=True))
        assert value["name"] in ("Rome", "Paris")
        assert isinstance(value["old"], bool)
    for broken, path, stop in (
        (sampling_pb2.Grammar(regex="(["), "sampling.grammar", {"ignore_eos": False}),
        (grammar, "stop.ignore_eos", {}),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            generate(worker, PROMPT, sampling={"grammar": broken}, stop=stop)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert path in caught.value.details()


def test_a_request_that_leaves_no_token_fails_alone(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    # Every token would stop it, and none may as long as it has no second one.
    all_stop = {"stop_token_ids": range(worker.GetModel(worker_pb2.GetModelRequest()).vocab_size), "min_tokens": 2}
    plain = tokens(generate(worker, PROMPT, sampling={"temperature": 0}))
    with ThreadPoolExecutor(5) as pool:
        sound = [pool.submit(generate, worker, PROMPT, sampling={"temperature": 0}) for _ in range(5)]
        with pytest.raises(grpc.RpcError) as caught:
            generate(worker, PROMPT, sampling={"temperature": 0}, stop=all_stop)
        assert all(tokens(one.result()) == plain for one in sound)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "no token is left to choose by min_tokens" in caught.value.details()


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9}, {"typical_p": 0.9}])
def test_a_temperature_beyond_float32_draws_what_may_be_drawn(
    worker: worker_pb2_grpc.WorkerServiceStub, sampling: dict[str, float]
) -> None:
    allowed = range(1_000, 1_100)
    banned = [
        token for token in range(worker.GetModel(worker_pb2.GetModelRequest()).vocab_size) if token not in allowed
    ]
    stop = {"stop_token_ids": banned, "min_tokens": 8}
    drawn = tokens(generate(worker, PROMPT, 8, sampling={"temperature": 1e39, "seed": 3, **sampling}, stop=stop))
    assert len(drawn) == 8
    assert set(drawn) <= set(allowed)


@pytest.mark.parametrize("temperature", [1e-8, 1e-4, 2.0, 1e4, 1e39])
def test_any_temperature_gives_text(worker: worker_pb2_grpc.WorkerServiceStub, temperature: float) -> None:
    """B66: tiny ones are greedy; huge ones are finite."""
    ours = tokens(generate(worker, PROMPT, 4, sampling={"temperature": temperature}))
    assert len(ours) == 4
    if temperature < 1e-3:
        assert ours == tokens(generate(worker, PROMPT, 4, sampling={"temperature": 0}))
