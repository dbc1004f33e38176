"""What a body may hold, and what it becomes."""

import re
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.errors import InvalidRequest
from gateway.http import fields, formats
from gateway.http.conversation import messages_of
from gateway.http.errors import SPELLINGS, spelled
from gateway.parameters import TABLE, Call, validate
from gateway.tools.functions import TOOL_CHOICE, TOOLS, Function
from service.errors import ServiceError

pytestmark = pytest.mark.unit

VOCABULARY = 1000


def refused(call: Call, **document: Any) -> dict[str, str]:
    """The problems of a body, in reading or in validating it."""
    with pytest.raises(InvalidRequest) as caught:
        parameters(call, **document)
    return caught.value.problems


def parameters(call: Call, **document: Any) -> dict[str, Any]:
    given = fields.read(call, document)
    validate(call, given.parameters, VOCABULARY)
    return dict(given.parameters)


def test_every_parameter_of_the_table_is_a_field() -> None:
    for call in (Call.GENERATE, Call.CHAT):
        for row in TABLE:
            elsewhere = {"request_id", "prompt_logprobs", "logprobs", TOOLS, TOOL_CHOICE}
            elsewhere |= fields.NOT_ASKED.keys() | formats.FIELDS
            if row.calls & call and row.name not in elsewhere:
                fields.read(call, {row.name: "a value of any kind"})


@pytest.mark.parametrize(
    ("call", "document", "expected"),
    [
        (Call.CHAT, {"max_completion_tokens": 7}, {"max_tokens": 7}),
        (Call.CHAT, {"max_completion_tokens": 7, "max_tokens": 7}, {"max_tokens": 7}),
        (Call.GENERATE, {"max_completion_tokens": 7, "max_tokens": 7}, {"max_tokens": 7}),
        (
            Call.GENERATE,
            {"max_tokens": 7.0, "n": 2.0, "temperature": 1.5},
            {"max_tokens": 7, "n": 2, "temperature": 1.5},
        ),
        (Call.CHAT, {"logprobs": True, "top_logprobs": 5.0}, {"logprobs": 5}),
        (Call.GENERATE, {"stop": "x"}, {"stop": ("x",)}),
        (Call.GENERATE, {"stop": ["x", "y"]}, {"stop": ("x", "y")}),
        (Call.GENERATE, {"stop": None, "seed": None}, {}),
        (Call.GENERATE, {"top_k": -1}, {"top_k": 0}),
        (Call.GENERATE, {"logit_bias": {"7": -100, "12": 1.5}}, {"logit_bias": {7: -100, 12: 1.5}}),
        (Call.GENERATE, {"logprobs": 3}, {"logprobs": 3}),
        (Call.GENERATE, {"logprobs": 3, "echo": True}, {"logprobs": 3, "echo": True, "prompt_logprobs": 3}),
        (Call.CHAT, {"logprobs": True}, {"logprobs": 0}),
        (Call.CHAT, {"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        (Call.CHAT, {"logprobs": False}, {}),
        (Call.CHAT, {"logprobs": False, "top_logprobs": 0}, {}),
        (Call.CHAT, {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"}, {}),
        (Call.CHAT, {"tools": [], "response_format": {"type": "text"}}, {}),
        (Call.CHAT, {"tools": [{"type": None, "function": {"name": "f"}}]}, {"tools": (Function("f"),)}),
        (Call.GENERATE, {"suffix": "", "best_of": 1}, {"best_of": 1}),
    ],
)
def test_fields_become_parameters(call: Call, document: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parameters(call, **document) == expected


@pytest.mark.parametrize(
    ("call", "document", "named"),
    [
        (Call.GENERATE, {"temperature": "hot"}, "temperature"),
        (Call.GENERATE, {"max_tokens": 1.5}, "max_tokens"),
        (Call.GENERATE, {"max_tokens": True}, "max_tokens"),
        (Call.GENERATE, {"max_tokens": 0}, "max_tokens"),
        (Call.GENERATE, {"stop": ["ok", ""]}, "stop[1]"),
        (Call.GENERATE, {"logit_bias": {"a token": 1}}, "logit_bias"),
        (Call.GENERATE, {"logit_bias": {"1000": 1}}, "logit_bias[1000]"),
        (Call.GENERATE, {"logit_bias": [1]}, "logit_bias"),
        (Call.GENERATE, {"stream": "yes"}, "stream"),
        (Call.GENERATE, {"stream_options": {"include_usage": True}}, "stream_options"),
        (Call.GENERATE, {"stream": True, "stream_options": {"include": True}}, "stream_options"),
        (Call.GENERATE, {"stream": True, "stream_options": {"continuous_usage_stats": 1}}, "continuous_usage_stats"),
        (Call.GENERATE, {"max_completion_tokens": 7, "max_tokens": 8}, "max_tokens"),
        (Call.GENERATE, {"model": 7}, "model"),
        (Call.GENERATE, {"suffix": "end"}, "suffix"),
        (Call.CHAT, {"logprobs": 3}, "logprobs"),
        (Call.CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (Call.CHAT, {"max_completion_tokens": 7, "max_tokens": 8}, "max_tokens"),
        (Call.CHAT, {"tools": [{"type": "function"}]}, "tools[0].function"),
        (Call.CHAT, {"tool_choice": "required"}, "tool_choice"),
        (Call.CHAT, {"reasoning_effort": "much"}, "reasoning_effort"),
        (Call.CHAT, {"verbosity": "low"}, "verbosity"),
        (Call.CHAT, {"chat_template_kwargs": "{}"}, "chat_template_kwargs"),
        (Call.CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (Call.CHAT, {"chat_template_kwargs": dict.fromkeys(map(str, range(65)), 1)}, "chat_template_kwargs"),
        (Call.CHAT, {"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(call: Call, document: dict[str, Any], named: str) -> None:
    assert list(refused(call, **document)) == [named]


@pytest.mark.parametrize(("old", "new"), [("functions", "tools"), ("function_call", "tool_choice")])
def test_a_field_that_another_one_has_replaced_is_refused_with_that_ones_name(old: str, new: str) -> None:
    found = refused(Call.CHAT, **{old: [{"name": "f"}]})
    assert found == {old: f"not supported by this version, but {new} is, which took its place"}


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ServiceError, match="supplied: max_token; did you mean max_tokens") as caught:
        fields.read(Call.CHAT, {"max_token": 3})
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "UNKNOWN_PARAMETER")
    with pytest.raises(ServiceError) as caught:
        fields.read(Call.CHAT, {"my secret is 7": 3})
    assert "secret" not in caught.value.message
    for call, name in ((Call.CHAT, "echo"), (Call.CHAT, "prompt"), (Call.GENERATE, "messages")):
        with pytest.raises(ServiceError, match=f"supplied: {name}"):
            fields.read(call, {name: "x"})


def test_names_lead_back_to_the_body() -> None:
    assert fields.read(Call.CHAT, {"max_completion_tokens": 0}).names == {"max_tokens": "max_completion_tokens"}
    assert fields.read(Call.CHAT, {"logprobs": True, "top_logprobs": 99}).names == {"logprobs": "top_logprobs"}


@pytest.mark.parametrize(
    ("call", "document", "said"),
    [
        (
            Call.CHAT,
            {"min_tokens": 5, "max_completion_tokens": 3},
            "min_tokens: 5 found, allowed is at most max_completion_tokens, which is 3",
        ),
        (
            Call.CHAT,
            {"min_tokens": 5, "max_tokens": 3},
            "min_tokens: 5 found, allowed is at most max_tokens, which is 3",
        ),
        (Call.GENERATE, {"logprobs": 21, "echo": True}, "logprobs: 21 found, allowed is a whole number from 0 to 20"),
        (
            Call.CHAT,
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs: 21 found, allowed is a whole number from 0 to 20",
        ),
    ],
)
def test_a_problem_speaks_of_other_fields_by_their_names_in_the_body(
    call: Call, document: dict[str, Any], said: str
) -> None:
    given = fields.read(call, document)
    with pytest.raises(ServiceError) as caught, spelled(given.names):
        validate(call, given.parameters, VOCABULARY)
    assert caught.value.message == said


def test_messages_become_what_templates_read() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "name": "Ada"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]
    assert list(messages_of({"messages": messages})) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo", "name": "Ada"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]


def test_null_in_a_message_is_the_same_as_absent_and_a_refusal_is_what_was_said() -> None:
    given = {"id": None, "type": "function", "function": {"name": "f", "arguments": None}}
    read = {"id": "", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [given]},
        {"role": "assistant", "content": None, "refusal": "No.", "tool_calls": None, "name": None},
    ]
    assert list(messages_of({"messages": messages})) == [
        {"role": "assistant", "content": "", "tool_calls": [read]},
        {"role": "assistant", "content": "No."},
    ]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (None, "prompt"),
        ("hi", "prompt"),
        (["hi"], "prompt[0]"),
        ([{"content": "hi"}], "prompt[0].role"),
        ([{"role": "user"}], "prompt[0].content"),
        ([{"role": "user", "content": 7}], "prompt[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "prompt[0].content[0]"),
        ([{"role": "user", "content": ["text"]}], "prompt[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "prompt[0].content[0].text"),
        ([{"role": "user", "content": "x", "name": 1}], "prompt[0].name"),
        ([{"role": "assistant", "tool_calls": "f"}], "prompt[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "prompt[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "prompt[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "assistant", "tool_calls": [{"type": "x", "function": {}}]}], "prompt[0].tool_calls[0].type"),
        ([{"role": "assistant", "tool_calls": [{"type": False, "function": {}}]}], "prompt[0].tool_calls[0].type"),
    ],
)
def test_what_is_no_message_is_named(messages: Any, named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        list(messages_of({"messages": messages}))
    assert list(caught.value.problems) == [named]


def test_the_page_names_every_field_and_status() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "openai.md").read_text()
    words = set(re.findall(r"`([a-z_]+)`", page))
    named = {row.name for row in TABLE} - {"request_id", "prompt_logprobs", "adapter"}
    assert words >= named | formats.FIELDS | fields.IGNORED | fields.NOT_ASKED.keys()
    assert set(re.findall(r"^\| ([45]\d\d)", page, flags=re.MULTILINE)) >= {"400", "404", "429", "500", "503"}


def test_every_code_but_ok_has_a_status() -> None:
    assert SPELLINGS.keys() == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    assert all(400 <= spelling.status < 600 for spelling in SPELLINGS.values())
