"""The official Python client against manager, worker and gateway with the demo model: one stack for all tests.

Text must be that of the gRPC surface; greedy, in float32.
"""

import itertools
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from gateway_http import Http
from processes import Stack, running_stack

from gateway.text.tokenizer import Tokenizer
from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

BLOCK = 16
PROMPT = "The history of the Roman Empire begins with"  # 8 tokens
USER: list[Any] = [{"role": "user", "content": "Name three fruits."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
BRIEF: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
MODEL = "smollm2"
# On a machine with neighbours; tests/e2e/test_cancel_gate.py tells how soon they are free.
FREED_SECONDS = 60.0


@pytest.fixture(scope="module")
def stack(demo_model: Path) -> Iterator[Stack]:
    flags = {"num-blocks": 256, "block-size": BLOCK, "dtype": "float32", "served-name": MODEL, "prefill-chunk": 16}
    with running_stack(
        demo_model, worker_flags=flags, gateway_flags={"http-listen": "127.0.0.1:0", "default-max-tokens": 3000}
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{stack.gateway.ready['http']}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def stub(stack: Stack) -> Iterator[gateway_pb2_grpc.GatewayServiceStub]:
    with grpc.insecure_channel(stack.gateway.address) as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)


def test_text_is_that_of_grpc_streamed_and_whole(client: openai.OpenAI, stub: Any) -> None:
    options = gateway_pb2.GenerateOptions(temperature=0, max_tokens=16)
    answers = list(stub.Generate(gateway_pb2.GenerateRequest(prompt=PROMPT, options=options)))
    text = "".join(answer.text for answer in answers)
    whole = client.completions.create(model=MODEL, prompt=PROMPT, **GREEDY)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (text, "length")
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (8, 16, 24)
    streamed = client.completions.create(model=MODEL, prompt=PROMPT, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in streamed) == text

    chat = gateway_pb2.ChatRequest(messages=[gateway_pb2.ChatMessage(role="user", content=USER[0]["content"])])
    chat.options.CopyFrom(options)
    answers = list(stub.Chat(chat))
    text = "".join(answer.content for answer in answers)
    usage = answers[-1].usage
    answer = client.chat.completions.create(model=MODEL, messages=USER, **GREEDY)
    assert (answer.choices[0].message.content, answer.choices[0].message.role) == (text, "assistant")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )
    options_ = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=USER, stream=True, stream_options=options_, **GREEDY)
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_clients_own_accumulator_reads_the_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=USER, **GREEDY)
    with client.chat.completions.stream(model=MODEL, messages=USER, **GREEDY) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"


def test_a_seed_repeats_and_the_parameters_of_the_table_are_heard(client: openai.OpenAI) -> None:
    def text(**given: Any) -> str:
        extra = {key: given.pop(key) for key in ("top_k", "min_p") if key in given}
        return str(
            client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, extra_body=extra, **given)
            .choices[0]
            .text
        )

    greedy = text(temperature=0)
    assert text(seed=7, temperature=1.5) == text(seed=7, temperature=1.5) != text(seed=8, temperature=1.5)
    # One candidate is greedy, whatever the temperature.
    assert text(temperature=1.5, top_k=1) == text(temperature=1.5, min_p=1.0) == greedy
    first = greedy[: greedy.index("R")]
    assert text(temperature=0, stop="R") == text(temperature=0, stop=["never", "R"]) == first


def test_n_answers_are_drawn_apart_and_repeat(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": USER, "n": 3, "seed": 7, "max_tokens": 12}
    whole = client.chat.completions.create(**given)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(stream=True, **given):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_biases_and_penalties_change_the_tokens(client: openai.OpenAI, demo_model: Path) -> None:
    tokenizer = Tokenizer.from_folder(demo_model)
    (token,) = tokenizer.encode(" fox", add_special_tokens=False)
    given: dict[str, Any] = {"prompt": PROMPT, "logit_bias": {str(token): 30}, "temperature": 0, "max_tokens": 24}
    forced = client.completions.create(model=MODEL, **given)
    assert forced.choices[0].text == " fox" * 24
    # The n-th repetition costs 2 n: by the 16th, all of the bias.
    varied = client.completions.create(model=MODEL, frequency_penalty=2.0, **given)
    assert 1 <= varied.choices[0].text.count(" fox") < 24


def test_logprobs_spell_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER, logprobs=True, top_logprobs=3, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    # The token that ends the answer has an entry without bytes.
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    assert (answer.choices[0].finish_reason, logprobs.content[-1].bytes) == ("stop", [])
    spelled = b"".join(bytes(token.bytes or []) for token in logprobs.content)
    assert spelled.decode() == answer.choices[0].message.content
    for token in logprobs.content:
        # Greedy: the chosen token is the likeliest.
        assert (len(token.top_logprobs), token.top_logprobs[0].token) == (3, token.token)
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert sum(math.exp(one.logprob) for one in token.top_logprobs) <= 1.000001
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=USER, logprobs=True, top_logprobs=3, stream=True, **GREEDY)
    )
    streamed = [
        token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content or ()
    ]
    assert [token.token for token in streamed] == [token.token for token in logprobs.content]


def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI) -> None:
    first = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=1, logprobs=2)
    added = first.choices[0].text
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT + added, temperature=0, max_tokens=1, logprobs=2, echo=True
    )
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.text_offset is not None
    # 9 tokens of prompt and one of answer; the first has nothing before it.
    assert choice.text.startswith(PROMPT + added)
    assert (len(logprobs.tokens), logprobs.token_logprobs[0]) == (10, None)
    assert "".join(logprobs.tokens) == choice.text
    starts = [*logprobs.text_offset, len(choice.text)]
    assert [choice.text[start:end] for start, end in itertools.pairwise(starts)] == logprobs.tokens
    # What was generated behind the prompt has the same log-probability as part of a prompt.
    assert first.choices[0].logprobs is not None
    assert first.choices[0].logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[8] == pytest.approx(first.choices[0].logprobs.token_logprobs[0], abs=1e-3)


def test_several_prompts_are_several_choices(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "Once upon a time", "def fibonacci(n):"]
    alone = [client.completions.create(model=MODEL, prompt=prompt, **BRIEF) for prompt in prompts]
    together = client.completions.create(model=MODEL, prompt=prompts, **BRIEF)
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert together.usage is not None
    assert together.usage.total_tokens == sum(answer.usage.total_tokens for answer in alone if answer.usage)
    texts = ["", "", ""]
    for chunk in client.completions.create(model=MODEL, prompt=prompts, stream=True, **BRIEF):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in together.choices]


def test_each_turn_finds_the_turns_before_it_in_the_cache(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me of the sea, in a few words."}]
    before = 0
    for turn in ("And of the hills?", "And of the stars?", ""):
        answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        # Everything of the last turn's prompt but its last, unfinished block.
        assert answer.usage.prompt_tokens_details.cached_tokens >= before // BLOCK * BLOCK
        before = answer.usage.prompt_tokens
        messages += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": turn},
        ]
    assert before > 4 * BLOCK


def test_the_page_shows_what_works(stack: Stack, demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "openai.md").read_text()
    streamed, parsed, *_ = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(streamed.replace("127.0.0.1:8000", stack.gateway.ready["http"]), names)
    assert "1." in capsys.readouterr().out
    exec(parsed, names)
    assert re.fullmatch(r"name='.*' inhabitants=-?\d+\n", capsys.readouterr().out)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    def failed(kind: type[openai.APIStatusError], **given: Any) -> Any:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**{"model": MODEL, "messages": USER, **given})
        assert caught.value.request_id
        return caught.value

    assert failed(openai.NotFoundError, model="none").code == "model_not_found"
    wrong = failed(openai.BadRequestError, temperature=-1)
    assert (wrong.param, wrong.code, wrong.type) == ("temperature", "invalid_value", "invalid_request_error")
    long = failed(openai.BadRequestError, messages=[{"role": "user", "content": "word " * 9000}])
    assert (long.param, long.code) == ("messages", "context_length_exceeded")
    assert "maximum context length is" in long.message
    schema = {"name": "s", "schema": {"type": "octopus"}}
    unknown = failed(openai.BadRequestError, response_format={"type": "json_schema", "json_schema": schema})
    assert (unknown.param, unknown.code) == ("response_format", "invalid_value")
    assert "octopus" in unknown.message
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert failed(openai.BadRequestError, tools=[tool]).param == "tools"


@pytest.fixture
def referenced(stack: Stack) -> Iterator[Callable[[], int]]:
    """How many blocks sequences hold."""
    with grpc.insecure_channel(stack.manager.address) as channel:
        kv = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        request = inspect_pb2.InspectPoolRequest(pool="default")
        yield lambda: int(kv.InspectPool(request, timeout=FREED_SECONDS).summary.stats.referenced_blocks)


@pytest.fixture
def cut_in_prefill(stack: Stack) -> Iterator[Callable[[], int]]:
    """How many requests ended before their prompt was computed."""
    with grpc.insecure_channel(stack.worker.address) as channel:
        worker = worker_pb2_grpc.WorkerServiceStub(channel)
        yield lambda: int(worker.GetStats(worker_pb2.GetStatsRequest(), timeout=FREED_SECONDS).aborted_in_prefill)


def test_closing_a_stream_frees_its_blocks(client: openai.OpenAI, referenced: Callable[[], int]) -> None:
    given: dict[str, Any] = {"max_tokens": 3000, "stream": True, "extra_body": {"ignore_eos": True}}
    stream = client.completions.create(model=MODEL, prompt=PROMPT, **given)
    next(iter(stream))
    assert referenced() > 0
    stream.close()
    closed = time.monotonic()
    while referenced():
        assert time.monotonic() - closed < FREED_SECONDS


@pytest.mark.parametrize("streamed", [False, True])
def test_leaving_before_the_first_token_frees_blocks(
    stack: Stack, referenced: Callable[[], int], cut_in_prefill: Callable[[], int], streamed: bool
) -> None:
    # 3,000 tokens in chunks of 16 are 188 steps; the client leaves when the first has its blocks.
    before = cut_in_prefill()
    ids = [100 + number % 1000 for number in range(3000)]
    body = {"prompt": ids, "max_tokens": 5, "stream": streamed, "cache_salt": str(streamed)}
    connection = Http(stack.gateway.ready["http"]).open("/v1/completions", body)
    while not referenced():
        pass
    connection.close()
    closed = time.monotonic()
    while referenced():
        assert time.monotonic() - closed < FREED_SECONDS
    assert cut_in_prefill() == before + 1
