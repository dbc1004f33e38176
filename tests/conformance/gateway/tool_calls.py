"""Functions that any model can be made to call, and what their calls have to look like."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
from text_calls import Client, Text, Texts
from wire_errors import Refusal, refusal

from octavo.gateway.v1 import gateway_pb2

# Bounded: a model that knows no end comes to one.
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "report": {
        "type": "object",
        "properties": {"sunny": {"type": "boolean"}, "city": {"enum": ["Lima", "Cusco"]}},
        "required": ["sunny", "city"],
        "additionalProperties": False,
    },
    "look_up": {
        "type": "object",
        "properties": {"words": {"type": "array", "items": {"enum": ["dry", "wet"]}, "minItems": 1, "maxItems": 2}},
        "required": ["words"],
        "additionalProperties": False,
    },
}
TOOLS = [
    gateway_pb2.Tool(name=name, description=f"Does {name}.", parameters_json_schema=json.dumps(schema))
    for name, schema in SCHEMAS.items()
]
NONE = gateway_pb2.ToolChoice(mode=gateway_pb2.TOOL_CHOICE_MODE_NONE)
REQUIRED = gateway_pb2.ToolChoice(mode=gateway_pb2.TOOL_CHOICE_MODE_REQUIRED)
# A call of the longest arguments, in any syntax, where a token is a byte.
ROOM = 200


def named(function: str) -> gateway_pb2.ToolChoice:
    return gateway_pb2.ToolChoice(function=function)


def check_arguments(name: str, arguments: str) -> None:
    """They are JSON that the function's schema allows."""
    given = json.loads(arguments)
    allowed: Mapping[str, Callable[[], bool]] = {
        "report": lambda: (
            given.keys() == {"sunny", "city"}
            and isinstance(given["sunny"], bool)
            and given["city"] in ("Lima", "Cusco")
        ),
        "look_up": lambda: (
            given.keys() == {"words"} and 1 <= len(given["words"]) <= 2 and set(given["words"]) <= {"dry", "wet"}
        ),
    }
    assert name in allowed, name
    assert allowed[name](), arguments


def check_calls(calls: Iterable[gateway_pb2.ToolCall]) -> None:
    """Each has a name of its own, is of a function that was offered, and matches its schema."""
    ids = [call.id for call in calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    for call in calls:
        check_arguments(call.name, call.arguments_json)


class Tooled:
    """A client whose requests offer the functions."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def answers(self, choice: gateway_pb2.ToolChoice, *, parallel: bool = False, **options: Any) -> Texts:
        """What comes back where calls are this free; answers end where they are complete."""
        fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
        return self.client.chat(
            "How is it there?", fields=fields, **{"max_tokens": ROOM, "ignore_eos": False, **options}
        )

    def ask(self, choice: gateway_pb2.ToolChoice, **options: Any) -> Text:
        """The one answer."""
        return self.answers(choice, **options).only

    def trouble(self) -> str:
        """Why no tools are taken; empty where they are."""
        if not self.client.model.has_chat_template:
            return "the model has no chat template"
        try:
            self.ask(REQUIRED)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            return str(error.details())
        return ""

    def refused(self, tools: list[gateway_pb2.Tool], choice: gateway_pb2.ToolChoice) -> Refusal:
        fields = {"tools": tools, "tool_choice": choice}
        return refusal(lambda: self.client.chat("Hi", fields=fields, ignore_eos=False), "INVALID_ARGUMENT")
