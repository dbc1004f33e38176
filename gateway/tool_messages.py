"""Tools in the gRPC surface's messages. Pure."""

from collections.abc import Sequence
from typing import Any

from gateway.schemas import schema_of
from gateway.tools.functions import AUTO, NONE, REQUIRED, TOOLS, Function, ToolChoice, named
from octavo.gateway.v1 import gateway_pb2

_MODES = {
    gateway_pb2.TOOL_CHOICE_MODE_NONE: NONE,
    gateway_pb2.TOOL_CHOICE_MODE_REQUIRED: REQUIRED,
}


def functions_of(tools: Sequence[gateway_pb2.Tool]) -> tuple[Function, ...]:
    """The functions that a request offers.

    Raises:
        InvalidRequest: the schema of one is none.
    """
    return tuple(
        Function(
            tool.name,
            tool.description or None,
            _parameters(f"{TOOLS}[{place}].parameters_json_schema", tool.parameters_json_schema),
            tool.strict,
        )
        for place, tool in enumerate(tools)
    )


def _parameters(at: str, text: str) -> dict[str, Any] | None:
    return schema_of(at, text) if text else None


def choice_of(choice: gateway_pb2.ToolChoice) -> ToolChoice:
    """Whether the model has to call any."""
    if choice.WhichOneof("kind") == "function":
        return named(choice.function)
    return _MODES.get(choice.mode, AUTO)
