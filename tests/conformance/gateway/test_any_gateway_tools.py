"""Tool calls through any gateway: calls that have to be made are made, whole and by their schemas, and no others."""

import json
from typing import Any

import pytest
from http_calls import Http
from tool_calls import NONE, REQUIRED, SCHEMAS, TOOLS, Tooled, check_arguments, check_calls, named

from octavo.gateway.v1 import gateway_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.model]

# What no answer of several calls comes to, as the schemas bound them.
LONGEST_CALLS = 1_500

Tool, Message = gateway_pb2.Tool, gateway_pb2.ChatMessage
# Bounds that the proto's comments give.
WRONG_TOOLS: list[tuple[str, list[Tool], gateway_pb2.ToolChoice]] = [
    ("tool_choice", [], REQUIRED),
    ("tool_choice", TOOLS, named("no such function")),
    ("tools[0]", [Tool(name="")], REQUIRED),
    ("tools[0].parameters_json_schema", [Tool(name="f", parameters_json_schema="{")], REQUIRED),
    ("tools[1]", [Tool(name="f"), Tool(name="f")], REQUIRED),
    ("tools", [Tool(name=f"f{place}") for place in range(129)], REQUIRED),
]


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_required_is_made_whole(tooled: Tooled, seed: int) -> None:
    answer = tooled.ask(REQUIRED, temperature=1.0, seed=seed)
    assert (answer.text, answer.reason) == ("", "TOOL_CALLS")
    assert len(answer.calls) == 1, "parallel_tool_calls is false"
    check_calls(answer.calls)
    assert answer.usage.completion_tokens == len(answer.tokens) > 0


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_function_that_is_named_is_called(tooled: Tooled, name: str) -> None:
    answer = tooled.ask(named(name), temperature=1.0, seed=1)
    assert [call.name for call in answer.calls] == [name]
    check_calls(answer.calls)


def test_answers_have_calls_of_their_own(tooled: Tooled) -> None:
    texts = tooled.answers(REQUIRED, parallel=True, n=3, temperature=1.0, seed=5, max_tokens=LONGEST_CALLS)
    assert sorted(texts.answers) == [0, 1, 2]
    assert all(answer.calls for answer in texts.answers.values())
    check_calls([call for answer in texts.answers.values() for call in answer.calls])
    assert {answer.reason for answer in texts.answers.values()} == {"TOOL_CALLS"}


def test_no_call_is_made_where_none_is_allowed(tooled: Tooled) -> None:
    answer = tooled.ask(NONE, max_tokens=24, ignore_eos=True)
    assert not answer.calls
    assert (answer.reason, answer.usage.completion_tokens) == ("LENGTH", 24)


def test_a_call_that_is_cut_is_none(tooled: Tooled) -> None:
    whole = tooled.ask(REQUIRED)
    assert whole.calls
    cut = tooled.ask(REQUIRED, max_tokens=5)
    assert cut.tokens == whole.tokens[:5]
    assert not cut.calls
    assert cut.reason == "LENGTH"
    assert cut.text


def test_a_conversation_goes_on_after_a_call(tooled: Tooled) -> None:
    client = tooled.client
    call = tooled.ask(REQUIRED).calls[0]
    messages = [
        Message(role="user", content="How is it there?"),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", tool_call_id=call.id, content="21 degrees, conformance"),
    ]
    chat = gateway_pb2.ChatInput(messages=messages, tools=TOOLS)
    rendered = client.stub.Tokenize(gateway_pb2.TokenizeRequest(model=client.model.id, chat=chat), timeout=60)
    assert "21 degrees, conformance" in rendered.rendered
    request = gateway_pb2.ChatRequest(
        model=client.model.id, messages=messages, tools=TOOLS, tool_choice=NONE, options=client.options()
    )
    *_, last = client.stub.Chat(request, timeout=60)
    assert last.usage.prompt_tokens == len(rendered.token_ids)


@pytest.mark.parametrize(("path", "tools", "choice"), WRONG_TOOLS, ids=[str(place) for place in range(6)])
def test_what_is_wrong_with_tools_is_named(
    tooled: Tooled, path: str, tools: list[Tool], choice: gateway_pb2.ToolChoice
) -> None:
    (field,) = tooled.refused(tools, choice).fields
    assert field.startswith(path)


# --- the same over HTTP


def body(tooled: Tooled, **fields: Any) -> dict[str, Any]:
    functions = [{"name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
    return {
        "model": tooled.client.model.id, "max_tokens": 200, "temperature": 0, "parallel_tool_calls": False,
        "messages": [{"role": "user", "content": "How is it there?"}],
        "tools": [{"type": "function", "function": function} for function in functions], **fields,
    }  # fmt: skip


CHAT = "/v1/chat/completions"
CHOICES: list[tuple[Any, gateway_pb2.ToolChoice]] = [
    ("required", REQUIRED),
    ({"type": "function", "function": {"name": "look_up"}}, named("look_up")),
]


@pytest.mark.parametrize(("choice", "own"), CHOICES, ids=["required", "named"])
def test_http_makes_the_call_that_grpc_makes(
    tooled: Tooled, http: Http, choice: Any, own: gateway_pb2.ToolChoice
) -> None:
    answer = tooled.ask(own)
    expected = [(call.name, json.loads(call.arguments_json)) for call in answer.calls]
    asked = body(tooled, tool_choice=choice)
    (whole,) = http.json(CHAT, asked)["choices"]
    assert (whole["message"]["content"] or "", whole["finish_reason"]) == ("", "tool_calls")
    assert all(call["id"] and call["type"] == "function" for call in whole["message"]["tool_calls"])
    assert functions_of(whole["message"]["tool_calls"]) == expected
    assert streamed(http, asked) == (expected, "tool_calls")


def functions_of(calls: list[Any]) -> list[tuple[str, Any]]:
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    for name, arguments in found:
        assert isinstance(arguments, str), "arguments are a text of JSON"
        check_arguments(name, arguments)
    return [(name, json.loads(arguments)) for name, arguments in found]


def streamed(http: Http, asked: Any) -> tuple[list[tuple[str, Any]], str]:
    """The calls that the chunks add up to, and why the answer ended: id and name come first, and once."""
    calls: list[Any] = []
    end = ""
    for event in http.events(CHAT, asked):
        for choice in event["choices"]:
            assert not choice["delta"].get("content")
            for delta in choice["delta"].get("tool_calls") or ():
                if delta["index"] == len(calls):
                    assert delta["id"]
                    assert delta["type"] == "function"
                    calls.append({"function": {"name": delta["function"]["name"], "arguments": ""}})
                else:
                    assert not {"id", "type"} & delta.keys()
                calls[delta["index"]]["function"]["arguments"] += delta["function"].get("arguments") or ""
            end = choice["finish_reason"] or end
    return functions_of(calls), end


def test_http_makes_no_call_where_none_is_allowed(tooled: Tooled, http: Http) -> None:
    (choice,) = http.json(CHAT, body(tooled, tool_choice="none", max_tokens=24, ignore_eos=True))["choices"]
    assert not choice["message"].get("tool_calls")
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
    ],
)
def test_http_names_what_is_wrong_with_tools(tooled: Tooled, http: Http, wrong: dict[str, Any], param: str) -> None:
    error = http.json(CHAT, body(tooled, **{"tool_choice": "required", **wrong}), 400)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
