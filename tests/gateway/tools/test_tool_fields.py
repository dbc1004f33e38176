"""What requests say of tools, over HTTP and gRPC, becomes functions and a choice, or the field is named."""

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.http import fields
from gateway.messages import given_parameters, spelled_for
from gateway.parameters import Call, validate
from gateway.tools.functions import AUTO, MAX_FUNCTIONS, NONE, REQUIRED, Freedom, Function, ToolChoice, named
from octavo.gateway.v1 import gateway_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
F = {"type": "function", "function": {"name": "f", "description": "does", "parameters": SCHEMA, "strict": True}}
G = {"type": "function", "function": {"name": "g"}}


def allowed(mode: Any, *names: Any) -> Any:
    functions = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": functions}}


def parameters(**document: Any) -> Any:
    return validate(Call.CHAT, fields.read(Call.CHAT, document).parameters, 100)


def test_tools_become_functions() -> None:
    read = parameters(tools=[F, G], parallel_tool_calls=False)
    assert read.tools == (Function("f", "does", SCHEMA, strict=True), Function("g"))
    assert (read.tool_choice, read.parallel_tool_calls) == (AUTO, False)
    # Templates see what the client wrote, less what is for the server alone.
    described = {"name": "f", "description": "does", "parameters": SCHEMA}
    assert [one.described() for one in read.tools] == [
        {"type": "function", "function": described},
        {"type": "function", "function": {"name": "g"}},
    ]
    nothing = parameters(tools=[], tool_choice="none")
    assert (nothing.tools, nothing.tool_choice, nothing.parallel_tool_calls) == ((), NONE, True)


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ("none", NONE),
        ("auto", AUTO),
        ("required", REQUIRED),
        ({"type": "function", "function": {"name": "g"}}, named("g")),
        (allowed("auto", "f"), ToolChoice(Freedom.TEXT_OR_CALLS, frozenset({"f"}))),
        (allowed("required", "g", "f"), ToolChoice(Freedom.CALLS, frozenset({"f", "g"}))),
    ],
)
def test_a_choice_is_read(given: Any, choice: ToolChoice) -> None:
    assert parameters(tools=[F, G], tool_choice=given).tool_choice == choice


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [F, {"type": "custom", "custom": {}}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f", "parameters": "{}"}}]}, "tools[0].function.parameters"),
        ({"tools": [{"function": {"name": "f", "description": 7}}]}, "tools[0].function.description"),
        ({"tools": [{"function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0]"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0]"),
        ({"tools": [F, G, F]}, "tools[2]"),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools[0]"),
        ({"tools": [{"function": {"name": f"f{i}"}} for i in range(MAX_FUNCTIONS + 1)]}, "tools"),
        ({"tools": [F], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [F], "tool_choice": 7}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": [F], "tool_choice": allowed("none", "f")}, "tool_choice.allowed_tools.mode"),
        ({"tools": [F], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [F], "tool_choice": allowed("auto", 7)}, "tool_choice.allowed_tools.tools[0].function.name"),
        ({"tools": [F], "tool_choice": allowed("auto", "f", "g")}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [F], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [F], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tools": [F], "tool_choice": "required", "beam_width": 2}, "beam_width"),
        ({"tools": [F], "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_is_no_tool_is_named(document: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parameters(**document)
    assert list(caught.value.problems) == [named]


def test_completions_have_no_tools() -> None:
    with pytest.raises(ServiceError, match="supplied: tools"):
        fields.read(Call.GENERATE, {"tools": [F]})


def test_grpc_says_the_same() -> None:
    tool = gateway_pb2.Tool(
        name="f", description="does", parameters_json_schema='{"type":"object","properties":{"city":{"type":"string"}}}'
    )
    request = gateway_pb2.ChatRequest(tools=[tool, gateway_pb2.Tool(name="g", strict=True)], parallel_tool_calls=False)
    read = validate(Call.CHAT, given_parameters(request), 100)
    assert read.tools == (Function("f", "does", SCHEMA), Function("g", strict=True))
    assert (read.tool_choice, read.parallel_tool_calls) == (AUTO, False)
    for mode, choice in (("NONE", NONE), ("AUTO", AUTO), ("REQUIRED", REQUIRED), ("UNSPECIFIED", AUTO)):
        request.tool_choice.mode = gateway_pb2.ToolChoiceMode.Value(f"TOOL_CHOICE_MODE_{mode}")
        assert validate(Call.CHAT, given_parameters(request), 100).tool_choice == choice
    request.tool_choice.function = "g"
    assert validate(Call.CHAT, given_parameters(request), 100).tool_choice == named("g")


@pytest.mark.parametrize("schema", ["{", "[]", "[" * 100_000])
def test_grpc_names_its_own_path(schema: str) -> None:
    request = gateway_pb2.ChatRequest(tools=[gateway_pb2.Tool(name="f", parameters_json_schema=schema)])
    with pytest.raises(ServiceError) as caught, spelled_for(request):
        given_parameters(request)
    assert list(caught.value.fields) == ["tools[0].parameters_json_schema"]
