"""Reasoning over HTTP and gRPC: the toy worker answers with its prompt, so a message is a script of both."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from gateway_http import Http

from octavo.gateway.v1 import gateway_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

CHAT = "/v1/chat/completions"
END = "</s>"

# The prompt is the last message, without a role before it, then what the caller had to say of reasoning.
TEMPLATE = """{{ messages[-1].reasoning_content.split('</think>')[-1] if messages[-1].reasoning_content }}
{{- messages[-1].content }}
{%- if reasoning_effort is defined %}{{ reasoning_effort }},{{ enable_thinking }}{% endif %}</s>"""

SCRIPT = "<think>\nHm, größer.\n</think>\n\nYes."
# Everything up to the closing mark, a byte being a token.
REASONING_TOKENS = len("<think>\nHm, größer.\n</think>".encode())
TOKENS = len(f"{SCRIPT}".encode()) + 1


class Said(NamedTuple):
    reasoning: str | None
    content: str | None
    finish_reason: str


@pytest.fixture(scope="module")
def thinker(toy: Any, toy_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("thinker")
    for name, content in {**toy_files, "chat_template.jinja": TEMPLATE.encode()}.items():
        (folder / name).write_bytes(content)
    arguments = ["--workers", toy.address, "--tokenizer", str(folder), "--tool-parser", "hermes"]
    gateway = sys.modules["gateway_processes"].Gateway(arguments)
    gateway.http = Http(gateway.wait_event("ready")["http"])
    yield gateway
    gateway.end()


def body(script: str = SCRIPT, **more: Any) -> Any:
    return {"messages": [{"role": "user", "content": script}], "max_tokens": 200, **more}


def whole(http: Http, document: Any) -> Said:
    (choice,) = http.post(CHAT, document).json["choices"]
    message = choice["message"]
    return Said(message.get("reasoning_content"), message["content"], choice["finish_reason"])


def streamed(http: Http, document: Any) -> Said:
    reasoning, content, end = list[str](), list[str](), ""
    for event in http.post(CHAT, {**document, "stream": True}).events:
        (choice,) = event["choices"]
        delta = choice["delta"]
        # It comes first, all of it.
        assert not ("reasoning_content" in delta and content)
        reasoning += [delta["reasoning_content"]] if "reasoning_content" in delta else []
        content += [delta["content"]] if delta.get("content") else []
        end = choice["finish_reason"] or end
    assert not any("<" in text for text in (*reasoning, *content))
    return Said("".join(reasoning) or None, "".join(content) or None, end)


def test_reasoning_streams_and_comes_whole(thinker: Any) -> None:
    expected = Said("Hm, größer.", "Yes.", "stop")
    assert whole(thinker.http, body()) == streamed(thinker.http, body()) == expected
    usage = thinker.http.post(CHAT, body()).json["usage"]
    assert usage["completion_tokens"] == TOKENS
    assert usage["completion_tokens_details"] == {"reasoning_tokens": REASONING_TOKENS}
    # Cut in its midst, within a mark's white space as well.
    for cut in (len("<think>\nHm,"), len("<think>\nHm, ")):
        document = body(max_tokens=cut)
        assert whole(thinker.http, document) == streamed(thinker.http, document) == Said("Hm,", None, "length")
    # A stop string is none of the reasoning's; and each of several answers has its own.
    assert whole(thinker.http, body(stop=["größer", "s."])) == Said("Hm, größer.", "Ye", "stop")
    choices = thinker.http.post(CHAT, body(n=2, logprobs=True)).json["choices"]
    # The second sample begins with the prompt's second character: no mark, no reasoning.
    assert choices[0]["message"]["reasoning_content"] == "Hm, größer."
    assert choices[1]["message"]["content"].startswith("think>\nHm")
    # Log-probabilities are of all tokens.
    assert len(choices[0]["logprobs"]["content"]) == TOKENS


def test_a_request_may_say_otherwise(thinker: Any) -> None:
    assert whole(thinker.http, body(include_reasoning=False)) == Said(None, "Yes.", "stop")
    assert whole(thinker.http, body(separate_reasoning=False)) == Said(None, SCRIPT, "stop")
    usage = thinker.http.post(CHAT, body(include_reasoning=False)).json["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": REASONING_TOKENS}
    # The template hears of the effort, in the names that templates know.
    assert whole(thinker.http, body(reasoning_effort="low")) == Said("Hm, größer.", "Yes.low,True", "stop")
    assert whole(thinker.http, body(reasoning_effort="none")) == Said("Hm, größer.", "Yes.none,False", "stop")
    error = thinker.http.post(CHAT, body(reasoning_effort="much")).error
    assert (error["param"], "none, minimal, low, medium, high, xhigh or max" in error["message"]) == (
        "reasoning_effort", True,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_an_answer_may_be_sent_back(thinker: Any, name: str) -> None:
    """By either name, and without content where the answer had none."""
    for content, said in (("Yes.", "Hm.Yes."), (None, "Hm.")):
        message = {"role": "assistant", "content": content, name: "Hm."}
        assert whole(thinker.http, {"messages": [message], "max_tokens": 50}) == Said(None, said, "stop")


def test_calls_come_behind_reasoning(thinker: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    choice = thinker.http.post(CHAT, body(f"<think>{call}?</think>\n{call}", tools=tools)).json["choices"][0]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == (f"{call}?", None)
    assert [one["function"]["name"] for one in choice["message"]["tool_calls"]] == ["f"]
    assert choice["finish_reason"] == "tool_calls"


def test_the_official_client_passes_it_on(thinker: Any) -> None:
    host, port = thinker.http.address
    with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as client:
        answer: Any = client.chat.completions.create(model="bytes", **body(), reasoning_effort="high")
        assert answer.choices[0].message.reasoning_content == "Hm, größer."
        assert answer.usage.completion_tokens_details.reasoning_tokens == REASONING_TOKENS
        stream: Any = client.chat.completions.create(model="bytes", **body(), stream=True)
        deltas = [chunk.choices[0].delta for chunk in stream]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Hm, größer."


def test_grpc_tells_it_apart_too(thinker: Any) -> None:
    request = gateway_pb2.ChatRequest(messages=[gateway_pb2.ChatMessage(role="user", content=SCRIPT)])
    request.options.max_tokens = 200
    responses = list(thinker.stub.Chat(request))
    assert "".join(response.reasoning for response in responses) == "Hm, größer."
    assert "".join(response.content for response in responses) == "Yes."
    assert responses[-1].usage.reasoning_tokens == REASONING_TOKENS
    request.include_reasoning = False
    request.reasoning_effort = "max"
    responses = list(thinker.stub.Chat(request))
    assert "".join(response.reasoning for response in responses) == ""
    assert "".join(response.content for response in responses) == "Yes.max,True"
    request.messages.add(role="assistant", content="Yes.", reasoning="Hm.")
    assert "".join(response.content for response in thinker.stub.Chat(request)) == "Hm.Yes.max,True"


def test_what_a_grammar_says_is_of_the_content(toy: Any, thinker: Any) -> None:
    def grammar(**more: Any) -> Any:
        answer = thinker.http.post(CHAT, body(response_format={"type": "json_object"}, **more))
        return toy.wait_event("request", request_id=answer.headers["x-request-id"])["sampling"]["grammar"]

    assert 'start: ("<think>" reasoning' in grammar()["lark"]
    assert grammar(separate_reasoning=False) == {"json_object": True}


def test_settings_rename_it_and_switch_it_off(toy: Any, thinker: Any, start_gateway: Callable[..., Any]) -> None:
    folder = thinker.process.args[thinker.process.args.index("--tokenizer") + 1]
    flags = ["--http-reasoning-field=reasoning"], ["--reasoning-parser=none"]
    started = [start_gateway(toy.address, "--tokenizer", folder, *one) for one in flags]
    renamed, off = (
        Http(gateway.wait_event("ready")["http"]).post(CHAT, body()).json["choices"][0]["message"]
        for gateway in started
    )
    assert renamed == {"role": "assistant", "content": "Yes.", "refusal": None, "reasoning": "Hm, größer."}
    assert off == {"role": "assistant", "content": SCRIPT, "refusal": None}
