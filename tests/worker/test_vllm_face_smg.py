"""The unmodified smg gateway in front of a worker, driven by the official openai client."""

import os
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from processes import REPOSITORY, Stack, running_stack
from smg_gateway import VERSION, NotAvailable, environment, smg_in_front_of
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from tokenizers import Tokenizer

from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model]

COUNTING = "1, 2, 3,"
QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def stack(demo_model: Path) -> Iterator[Stack]:
    flags = {"num-blocks": 200, "threads": 1}
    with running_stack(demo_model, gateway=False, worker_flags=flags, manager_flags={"watch-token-ids": "true"}) as one:
        yield one


@pytest.fixture(scope="module")
def url(stack: Stack) -> Iterator[str]:
    folder = os.environ.get("OCTAVO_SMG", REPOSITORY / ".cache" / f"smg-{VERSION}")
    try:
        interpreter = environment(Path(folder))
    except NotAvailable as reason:
        pytest.skip(f"smg {VERSION} cannot be installed: {reason}")
    with smg_in_front_of(stack.worker.address, interpreter) as base:
        yield base


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as one:
        yield one


@pytest.fixture(scope="module")
def model(client: openai.OpenAI, demo_model: Path) -> str:
    (served,) = client.models.list().data
    assert served.id == demo_model.name
    return served.id


@pytest.fixture(scope="module")
def own(stack: Stack) -> worker_pb2_grpc.WorkerServiceStub:
    return worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))


def greedy_text(own: worker_pb2_grpc.WorkerServiceStub, folder: Path, prompt: str, max_tokens: int) -> str:
    """What the worker's own service answers."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    request = worker_pb2.GenerateRequest(
        token_ids=tokenizer.encode(prompt).ids, sampling={"temperature": 0}, stop={"max_tokens": max_tokens}
    )
    return tokenizer.decode([token for response in own.Generate(request, timeout=60) for token in response.token_ids])


def test_a_completion_is_what_the_worker_says_by_its_own_service(
    client: openai.OpenAI, model: str, own: worker_pb2_grpc.WorkerServiceStub, demo_model: Path
) -> None:
    answer = client.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert answer.choices[0].text == greedy_text(own, demo_model, "The capital of France is", 8)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 8)


def test_a_chat_streams_what_it_answers_whole(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=12, temperature=0)
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(map(bool, pieces)) > 1  # tokens that come while one is sent go together
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 12
    # The chat's template is the model's own: a user's turn and the opening of the assistant's around the question.
    assert whole.usage.prompt_tokens == chunks[-1].usage.prompt_tokens > 20


def test_samples_of_one_seed_repeat_and_differ_from_one_another(client: openai.OpenAI, model: str) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=10, n=2, seed=seed)
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 20
        return [choice.message.content for choice in answer.choices]

    first = ask(5)
    assert first[0] != first[1]
    assert ask(5) == first
    assert ask(6) != first


def test_streamed_samples_are_the_whole_ones(client: openai.OpenAI, model: str) -> None:
    options = {"model": model, "messages": QUESTION, "max_tokens": 10, "n": 2, "seed": 5}
    whole = client.chat.completions.create(**options)
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in whole.choices}


def test_a_completion_has_as_many_samples_as_are_asked_for(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=COUNTING, max_tokens=6, n=2, seed=3, temperature=1.5)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text != answer.choices[1].text


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_and_the_work(
    stream: bool, client: openai.OpenAI, model: str, own: worker_pb2_grpc.WorkerServiceStub
) -> None:
    before = own.GetStats(worker_pb2.GetStatsRequest())
    options = {"model": model, "prompt": COUNTING, "max_tokens": 1_000, "temperature": 0, "stop": ["7"]}
    if stream:
        chunks = list(client.completions.create(**options, stream=True))
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        reason = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
    else:
        answer = client.completions.create(**options)
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 11  # " 4 , _ 5 , _ 6 , _ 7": each digit, comma and space, is one
    assert (text, reason) == (" 4, 5, 6, ", "stop")
    after = own.GetStats(worker_pb2.GetStatsRequest())
    assert after.generated_tokens - before.generated_tokens < 500


def test_logprobs_of_a_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content
    assert entries is not None
    assert "".join(entry.token for entry in entries) == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        # Greedy: the chosen token is the most likely one.
        assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (entry.token, entry.logprob)
        assert entry.top_logprobs[0].logprob > entry.top_logprobs[1].logprob > entry.top_logprobs[2].logprob


def test_a_stream_that_is_left_is_aborted(
    client: openai.OpenAI, model: str, stack: Stack, own: worker_pb2_grpc.WorkerServiceStub
) -> None:
    before = own.GetStats(worker_pb2.GetStatsRequest())
    stream = client.completions.create(
        model=model, prompt=COUNTING, max_tokens=2000, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in range(3):
        next(stream)
    stream.close()
    # It waits for the pool to be idle.
    engine = vllm_engine_pb2_grpc.VllmEngineStub(open_channel(stack.worker.address))
    assert engine.FlushCache(common_pb2.FlushCacheRequest(timeout_s=60), timeout=60).success
    after = own.GetStats(worker_pb2.GetStatsRequest())
    assert after.aborted_requests == before.aborted_requests + 1
    assert after.generated_tokens - before.generated_tokens < 1000


def test_who_asks_for_too_much_hears_of_the_workers_bounds(client: openai.OpenAI, model: str) -> None:
    # 200 blocks of 16 tokens are a context of 3200; it is smg that refuses, by what GetModelInfo told it.
    with pytest.raises(openai.BadRequestError, match="maximum context length is 3200 tokens"):
        client.completions.create(model=model, prompt="word " * 4000, max_tokens=4)
    # A constraint goes to the worker as it is.
    with pytest.raises(openai.BadRequestError, match=r"sampling\.grammar"):
        client.completions.create(model=model, prompt=COUNTING, max_tokens=4, extra_body={"regex": "("})
