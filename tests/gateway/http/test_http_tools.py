"""Calls that a model was free to make, over HTTP: the toy worker answers with its prompt, so a message is a script."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from gateway_http import Http

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

# The answer begins as the prompt does, with the role, and the prompt's end token ends it.
ROLE, END = "user:", "</s>"


def call(arguments: str) -> str:
    return f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'


class Said(NamedTuple):
    """An answer: its text, its calls' arguments, why it ended."""

    content: str
    arguments: list[str]
    finish_reason: str


def whole(http: Http, body: Any) -> Said:
    (choice,) = http.post(CHAT, body).json["choices"]
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert all(one["type"] == "function" and one["function"]["name"] == "f" and one["id"] for one in calls)
    arguments = [one["function"]["arguments"] for one in calls]
    return Said(message["content"] or "", arguments, choice["finish_reason"])


def streamed(http: Http, body: Any) -> tuple[Said, int]:
    """What the chunks add up to, and how many of them brought arguments."""
    text, arguments, end, pieces = "", list[str](), "", 0
    for event in http.post(CHAT, {**body, "stream": True}).events:
        (choice,) = event["choices"]
        text += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", ()):
            if delta["index"] == len(arguments):
                assert (delta["type"], delta["function"]["name"], bool(delta["id"])) == ("function", "f", True)
                arguments.append("")
            else:
                assert delta.keys() == {"index", "function"}
            arguments[delta["index"]] += delta["function"]["arguments"]
            pieces += 1
        end = choice["finish_reason"] or end
    return Said(text, arguments, end), pieces


@pytest.fixture
def http(toy: Any, start_gateway: Callable[..., Any]) -> Http:
    return Http(start_gateway(toy.address, "--tool-parser", "hermes").wait_event("ready")["http"])


def test_calls_stream_and_come_whole(http: Http) -> None:
    def body(script: str, **more: Any) -> Any:
        return {"messages": [{"role": "user", "content": script + END}], "tools": TOOLS, "max_tokens": 400, **more}

    first, second = '{"größe": [1, "x"]}', "{}"
    script = f"Well. {call(first)}\n{call(second)}"
    expected = Said(f"{ROLE}Well. ", [first, second], "tool_calls")
    assert whole(http, body(script)) == expected
    said, pieces = streamed(http, body(script))
    assert said == expected
    # A token is a byte here, and arguments of 19 characters come in many pieces.
    assert pieces > 10

    # One call at most: the answer is over with it, and so is the worker's part in it.
    alone = body(script, parallel_tool_calls=False)
    assert whole(http, alone) == streamed(http, alone)[0] == Said(f"{ROLE}Well. ", [first], "tool_calls")
    used = http.post(CHAT, alone).json["usage"]["completion_tokens"]
    assert used == 1 + len(f"{ROLE}Well. {call(first)}".encode()) - len("</tool_call>")

    # No call is lost, and none is made up: what is none is text, also where a stream has begun to tell it.
    for broken in ('{"a": x}', '{"a": '):
        answer = whole(http, body(call(broken)))
        assert answer == Said(f"{ROLE}{call(broken)}", [], "stop")
        said, _ = streamed(http, body(call(broken)))
        assert (said.content, said.finish_reason) == (answer.content, "stop")
        assert broken.startswith(said.arguments[0])
    unknown = call("{}").replace('"f"', '"g"')
    assert whole(http, body(unknown)) == Said(ROLE + unknown, [], "stop")

    # The end of the tokens is no end of a call; and where no call may be made, there is none.
    cut = whole(http, body(script, max_tokens=len(f"{ROLE}Well. {call(first)}"[:-14].encode())))
    assert cut == Said(f"{ROLE}Well. {call(first)}"[:-15], [], "length")
    assert whole(http, body(script, tool_choice="none")) == Said(ROLE + script, [], "stop")
    # A stop string ends a call as it ends any text.
    assert whole(http, body(script, stop="[1")) == Said(ROLE + script.partition("[1")[0], [], "stop")


def test_the_worker_gets_the_grammar(toy: Any, http: Http) -> None:
    def sampling(**more: Any) -> Any:
        answer = http.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, **more})
        assert answer.status == 200
        return toy.wait_event("request", request_id=answer.headers["x-request-id"])["sampling"]

    ((notation, source),) = sampling(tools=TOOLS, tool_choice="required")["grammar"].items()
    assert notation == "lark"
    assert '"\\"f\\""' in source
    assert "grammar" not in sampling(tools=TOOLS)
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "integer"}}}
    assert sampling(response_format=wanted)["grammar"] == {"json_schema": json.dumps({"type": "integer"})}
