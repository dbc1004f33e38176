"""Calls on a real gateway process whose worker answers a prompt with the prompt, byte by byte."""

import re
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from octavo.gateway.v1 import gateway_pb2
from service.errors import status_of

pytestmark = pytest.mark.e2e

Options = gateway_pb2.GenerateOptions


@pytest.fixture
def worker(start_worker: Callable[..., Any]) -> Any:
    return start_worker()


@pytest.fixture
def gateway(start_gateway: Callable[..., Any], worker: Any) -> Any:
    gateway = start_gateway(worker.address)
    gateway.wait_event("ready")
    return gateway


def generate(gateway: Any, prompt: str, **options: Any) -> list[gateway_pb2.GenerateResponse]:
    echo = options.pop("echo", False)
    request = gateway_pb2.GenerateRequest(prompt=prompt, options=Options(**options), echo=echo)
    return list(gateway.stub.Generate(request, timeout=30))


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Code, message and field violations of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    fields = {}
    for detail in getattr(status_of(caught.value), "details", ()):
        bad = error_details_pb2.BadRequest()
        if detail.Unpack(bad):
            fields = {violation.field: violation.description for violation in bad.field_violations}
    return caught.value.code(), caught.value.details(), fields


def test_a_stream_has_every_token_and_ends_with_its_usage(gateway: Any) -> None:
    # 3 prompt bytes are 3 tokens; 5 tokens of "abcabc..." are abcab; the toy reports half of the prompt as cached.
    responses = generate(gateway, "abc", max_tokens=5)
    assert "".join(response.text for response in responses) == "abcab"
    assert sum(len(response.token_ids) for response in responses) == 5
    last = responses[-1]
    assert last.finish_reason == gateway_pb2.FINISH_REASON_LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (3, 5, 1)
    assert last.usage.queue_seconds == 0.25
    assert all(not response.finish_reason and not response.HasField("usage") for response in responses[:-1])
    assert {response.header.model for response in responses} == {"bytes"}


def test_emoji_arrive_whole_although_each_byte_is_a_token(gateway: Any) -> None:
    # 4 + 25 bytes: a grinning face, and a family of four joined by ZWJ; the cut after 31 tokens leaves two bytes of the
    # second face, an unfinished character that becomes one U+FFFD.
    prompt = "😀👨‍👩‍👧‍👦"
    size = len(prompt.encode())
    responses = generate(gateway, prompt, max_tokens=size + 2)
    assert size == 29
    assert "".join(response.text for response in responses) == prompt + "\ufffd"
    assert "\ufffd" not in "".join(response.text for response in responses[:-1])


def test_a_stop_string_ends_the_text_and_the_workers_call(gateway: Any, worker: Any) -> None:
    # "one two stop here ..." with stop " stop": 7 characters of text, 12 tokens until the stop string is complete.
    responses = generate(gateway, "one two stop here", max_tokens=100_000, stop=["never", " stop"])
    last = responses[-1]
    assert "".join(response.text for response in responses) == "one two"
    assert (last.finish_reason, last.stop_reason) == (gateway_pb2.FINISH_REASON_STOP, " stop")
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (17, 12, 8)
    assert worker.wait_event("ended")["how"] == "cancelled"


def test_stop_tokens_are_tokens_but_no_text(gateway: Any) -> None:
    responses = generate(gateway, "ab</s>cd", max_tokens=100)
    assert "".join(response.text for response in responses) == "ab"
    assert responses[-1].token_ids == [256]
    assert (responses[-1].finish_reason, responses[-1].stop_reason) == (gateway_pb2.FINISH_REASON_STOP, "256")
    on = generate(gateway, "ab</s>cd", max_tokens=5, ignore_eos=True, skip_special_tokens=False)
    assert "".join(response.text for response in on) == "ab</s>cd"


def test_echo_and_token_prompts(gateway: Any) -> None:
    ids = list(gateway.stub.Tokenize(gateway_pb2.TokenizeRequest(text="xyz")).token_ids)
    request = gateway_pb2.GenerateRequest(
        token_ids=gateway_pb2.TokenIds(ids=ids), options=Options(max_tokens=2), echo=True
    )
    assert [response.text for response in gateway.stub.Generate(request)] == ["xyz", "x", "y"]


def by_answer(responses: list[gateway_pb2.GenerateResponse]) -> list[str]:
    texts = [""] * (1 + max(response.index for response in responses))
    for response in responses:
        texts[response.index] += response.text
    return texts


def test_several_answers_come_side_by_side_and_end_one_by_one(gateway: Any, worker: Any) -> None:
    # Answer i begins at byte i of the prompt: "abc</s>..." stops after 3 tokens, the others after 2 and 1.
    responses = generate(gateway, "abc</s>d", max_tokens=100, n=3)
    assert by_answer(responses) == ["abc", "bc", "c"]
    ends = [(response.index, response.usage.completion_tokens) for response in responses if response.finish_reason]
    assert ends == [(2, 2), (1, 3), (0, 4)]
    assert {response.usage.cached_tokens for response in responses if response.finish_reason} == {2}
    assert worker.wait_event("ended")["how"] == "finished"


def test_a_stop_string_ends_its_answer_and_the_last_one_ends_the_call(gateway: Any, worker: Any) -> None:
    responses = generate(gateway, "abcd", max_tokens=100_000, n=2, stop=["da"], echo=True)
    # Echoed first; then "abcd|a" and "bcd|a".
    assert by_answer(responses) == ["abcd" + "abc", "abcd" + "bc"]
    assert [response.index for response in responses if response.finish_reason] == [1, 0]
    assert worker.wait_event("ended")["how"] == "cancelled"


def test_every_answer_of_a_chat_names_its_role_once(gateway: Any) -> None:
    request = gateway_pb2.ChatRequest(
        messages=[gateway_pb2.ChatMessage(role="user", content="hi")], options=Options(max_tokens=2, n=2)
    )
    responses = list(gateway.stub.Chat(request))
    assert [(response.index, response.role) for response in responses] == [
        (0, "assistant"), (1, "assistant"), (0, ""), (1, "")
    ]  # fmt: skip


def test_chat_renders_the_template_and_names_the_role_once(gateway: Any, worker: Any) -> None:
    request = gateway_pb2.ChatRequest(
        messages=[gateway_pb2.ChatMessage(role="user", content="hi")], options=Options(max_tokens=8), request_id="mine"
    )
    responses = list(gateway.stub.Chat(request))
    # "<|turn|>user:hi<|turn|>assistant:" is 1 + 7 + 1 + 10 tokens; special tokens are no text.
    assert worker.wait_event("request")["prompt_tokens"] == 19
    assert [response.role for response in responses] == ["assistant"] + [""] * 7
    assert "".join(response.content for response in responses) == "user:hi"
    assert {response.header.request_id for response in responses} == {"mine"}


def test_tokenize_detokenize_and_list(gateway: Any) -> None:
    chat = gateway_pb2.ChatInput(messages=[gateway_pb2.ChatMessage(role="user", content="é")])
    tokenized = gateway.stub.Tokenize(gateway_pb2.TokenizeRequest(chat=chat))
    assert tokenized.rendered == "<|turn|>user:é<|turn|>assistant:"
    request = gateway_pb2.DetokenizeRequest(token_ids=tokenized.token_ids)
    assert gateway.stub.Detokenize(request).text == tokenized.rendered
    request.skip_special_tokens = True
    assert gateway.stub.Detokenize(request).text == "user:éassistant:"
    chat.messages[0].role = "developer"
    developer = gateway.stub.Tokenize(gateway_pb2.TokenizeRequest(chat=chat))
    assert developer.rendered == "<|turn|>system:é<|turn|>assistant:"
    (model,) = gateway.stub.ListModels(gateway_pb2.ListModelsRequest()).models
    assert (model.id, model.vocab_size, model.ready_workers, model.has_chat_template) == ("bytes", 258, 1, True)


def test_the_template_knows_the_names_that_a_caller_gives(gateway: Any, worker: Any) -> None:
    messages, names = [gateway_pb2.ChatMessage(role="user", content="hi")], '{"aside": {"text": "no"}}'
    chat = gateway_pb2.ChatInput(messages=messages, chat_template_kwargs=names)
    rendered = gateway.stub.Tokenize(gateway_pb2.TokenizeRequest(chat=chat)).rendered
    assert rendered == "<|turn|>user:hi<|turn|>assistant:nono"
    options = gateway_pb2.GenerateOptions(max_tokens=1)
    list(gateway.stub.Chat(gateway_pb2.ChatRequest(messages=messages, chat_template_kwargs=names, options=options)))
    # Two special tokens and the bytes between them: 1 + 7 + 1 + 10 + 4.
    assert worker.wait_event("request")["prompt_tokens"] == 23
    for wrong in ("{", "[]", '{"tools": []}', '{"aside": 1}'):
        chat = gateway_pb2.ChatInput(messages=messages, chat_template_kwargs=wrong)
        code, _, fields = refused(lambda chat=chat: gateway.stub.Tokenize(gateway_pb2.TokenizeRequest(chat=chat)))
        # What the template makes of a value is known when the conversation is rendered.
        named = "chat.messages" if wrong == '{"aside": 1}' else "chat.chat_template_kwargs"
        assert (code, [*fields]) == (grpc.StatusCode.INVALID_ARGUMENT, [named])


def test_bad_requests_are_refused_with_their_field(gateway: Any, worker: Any) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert refused(lambda: generate(gateway, ""))[::2] == (
        invalid,
        {"prompt": "empty, at least one character or token id is needed"},
    )
    code, _, fields = refused(lambda: generate(gateway, "x" * 5_000_000))
    assert (code, fields) == (invalid, {"prompt": "5000000 bytes found, allowed are at most 4194304"})
    code, _, fields = refused(
        lambda: generate(gateway, "x", temperature=float("nan"), top_p=2, max_tokens=0, stop=["", "ok"])
    )
    assert code == invalid
    assert set(fields) == {"options.temperature", "options.top_p", "options.max_tokens", "options.stop[0]"}
    assert fields["options.temperature"] == "nan found, allowed is a finite number at least 0"

    request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=[1, 258]))
    assert set(refused(lambda: list(gateway.stub.Generate(request)))[2]) == {"token_ids.ids[1]"}
    for chat, field in (
        (gateway_pb2.ChatRequest(), "messages"),
        (
            gateway_pb2.ChatRequest(messages=[gateway_pb2.ChatMessage(role="user", content="x" * 5_000_000)]),
            "messages",
        ),
        (
            gateway_pb2.ChatRequest(
                messages=[
                    gateway_pb2.ChatMessage(role="assistant", tool_calls=[gateway_pb2.ToolCall(arguments_json="{")])
                ]
            ),
            "messages[0].tool_calls[0].arguments_json",
        ),
        (gateway_pb2.ChatRequest(messages=[gateway_pb2.ChatMessage(role="boss", content="hi")]), "messages[0].role"),
        (gateway_pb2.ChatRequest(messages=[gateway_pb2.ChatMessage(role="user", content="refuse me")]), "messages"),
        (
            gateway_pb2.ChatRequest(
                messages=[gateway_pb2.ChatMessage(role="user", content="hi")], tools=[gateway_pb2.Tool(name="f")]
            ),
            "tools",
        ),
    ):
        code, _, fields = refused(lambda chat=chat: list(gateway.stub.Chat(chat)))
        assert (code, set(fields)) == (invalid, {field})

    code, message, _ = refused(lambda: list(gateway.stub.Generate(gateway_pb2.GenerateRequest(model="no", prompt="x"))))
    assert code == grpc.StatusCode.NOT_FOUND
    assert "bytes" in message
    worker.end()
    assert worker.all_events("request") == []


def test_the_context_bounds_prompt_and_answer(start_worker: Any, start_gateway: Any) -> None:
    worker = start_worker("--max-context", "10")
    gateway = start_gateway(worker.address)
    gateway.wait_event("ready")
    _, message, fields = refused(lambda: generate(gateway, "0123456789"))
    assert set(fields) == {"prompt"}
    assert "10 tokens found, allowed are at most 9" in message
    _, message, fields = refused(lambda: generate(gateway, "0123456", max_tokens=4))
    assert set(fields) == {"options.max_tokens"}
    assert "4 found, allowed are at most 3" in message
    # Without max_tokens the default of 512 is cut to the 3 tokens of room.
    last = generate(gateway, "0123456")[-1]
    assert (last.usage.completion_tokens, last.finish_reason) == (3, gateway_pb2.FINISH_REASON_LENGTH)


def test_parameters_reach_the_worker(gateway: Any, worker: Any) -> None:
    generate(gateway, "abc", max_tokens=1, temperature=1e-6, seed=-1)
    request = worker.wait_event("request")
    # Below 1e-5 is greedy; -1 is the unsigned seed of the same 64 bits.
    assert (request["temperature"], request["seed"], request["max_tokens"]) == (0.0, 2**64 - 1, 1)


def test_sampling_parameters_and_logprobs_pass_through(gateway: Any, worker: Any) -> None:
    wanted = {
        "typical_p": 0.5,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {7: 2.0},
    }
    request = gateway_pb2.GenerateRequest(
        prompt="abc", options=Options(max_tokens=2, logprobs=2, prompt_logprobs=1, bad_words=["no"], **wanted)
    )
    first, second = gateway.stub.Generate(request, timeout=30)
    sampling = worker.wait_event("request")["sampling"]
    assert {name: sampling[name] for name in wanted} == wanted | {"logit_bias": {"7": 2.0}}
    # Tokens are bytes in the order of the byte-level alphabet: n, o, and behind a space.
    space, n, o = gateway.stub.Tokenize(gateway_pb2.TokenizeRequest(text=" no"), timeout=30).token_ids
    assert sampling["bad_words"] == [{"ids": [n, o]}, {"ids": [space, n, o]}]
    assert [(entry.token.text, entry.token.logprob) for entry in first.prompt_logprobs] == [("b", -1.0), ("c", -1.0)]
    assert not second.prompt_logprobs
    for response, letter in ((first, "a"), (second, "b")):
        (entry,) = response.logprobs
        assert (entry.token.text, entry.token.bytes, entry.token.logprob) == (letter, letter.encode(), -1.0)
        assert [(one.token_id, one.logprob) for one in entry.top] == [(0, -0.5), (1, -0.5)]


def test_worker_errors_reach_the_client(worker: Any, start_gateway: Any) -> None:
    gateway = start_gateway(worker.address, "--migration-wait-seconds", "0")
    gateway.wait_event("ready")
    code, message, _ = refused(lambda: generate(gateway, "FULL", max_tokens=9))
    assert (code, message) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
    code, message, _ = refused(lambda: generate(gateway, "BREAK", max_tokens=9))
    assert code == grpc.StatusCode.INTERNAL
    assert "without finishing" in message
    code, message, _ = refused(lambda: generate(gateway, "DIE", max_tokens=9))
    assert code == grpc.StatusCode.UNAVAILABLE
    assert re.search("failed after [01] tokens", message)  # the first one may go down with the worker's socket


def test_the_metrics_page_counts_calls_and_tokens(worker: Any, start_gateway: Any) -> None:
    gateway = start_gateway(worker.address, "--metrics", "127.0.0.1:0")
    page = f"http://{gateway.wait_event('ready')['metrics']}/metrics"
    generate(gateway, "abcd", max_tokens=5)
    refused(lambda: generate(gateway, ""))
    shown: list[str] = []
    while 'octavo_gateway_running_calls{method="Generate"} 0.0' not in shown:
        with urllib.request.urlopen(page, timeout=60) as response:
            shown = response.read().decode().splitlines()
    assert 'octavo_gateway_calls_total{code="OK",method="Generate"} 1.0' in shown
    assert 'octavo_gateway_calls_total{code="INVALID_ARGUMENT",method="Generate"} 1.0' in shown
    labels = '{model="bytes",surface="grpc"}'
    assert f"octavo_gateway_prompt_tokens_total{labels} 4.0" in shown
    assert f"octavo_gateway_cached_tokens_total{labels} 2.0" in shown
    assert f"octavo_gateway_generated_tokens_total{labels} 5.0" in shown
    # Five tokens: one first, four next.
    assert f"octavo_gateway_first_token_seconds_count{labels} 1.0" in shown
    assert f"octavo_gateway_next_token_seconds_count{labels} 4.0" in shown
    assert "octavo_gateway_ready 1.0" in shown


def test_bytes_that_are_no_message_are_refused(gateway: Any) -> None:
    # Field 2 (prompt) of one byte 0xff: no UTF-8, so no string.
    call = gateway.channel.unary_stream("/octavo.gateway.v1.GatewayService/Generate")
    code, message, _ = refused(lambda: list(call(b"\x12\x01\xff")))
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNKNOWN)
    assert "octavo.gateway.v1.GenerateRequest" in message
    assert len(generate(gateway, "abc", max_tokens=2)) == 2
