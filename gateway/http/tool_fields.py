"""The fields of a chat body about tools."""

from collections.abc import Mapping
from typing import Any

from gateway import json_words
from gateway.errors import InvalidRequest
from gateway.tools.functions import AUTO, NONE, REQUIRED, TOOL_CHOICE, TOOLS, Function, ToolChoice, named

ALLOWED = "allowed_tools"

_MODES = {"none": NONE, "auto": AUTO, "required": REQUIRED}


def parameters_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a body says of tools, by the table's names.

    Raises:
        InvalidRequest: a field of another shape.
    """
    parameters: dict[str, Any] = {}
    if functions := tools_of(fields):
        parameters[TOOLS] = functions
    if TOOL_CHOICE in fields:
        parameters[TOOL_CHOICE] = choice_of(fields[TOOL_CHOICE])
    return parameters


def tools_of(fields: Mapping[str, Any]) -> tuple[Function, ...]:
    """The functions of a body.

    Raises:
        InvalidRequest: one of them is none.
    """
    tools = fields.get(TOOLS, [])
    if not isinstance(tools, list):
        raise _wrong(TOOLS, tools, "an array of tools")
    return tuple(_function(f"{TOOLS}[{place}]", tool) for place, tool in enumerate(tools))


def choice_of(choice: Any) -> ToolChoice:
    """Whether the model has to call any.

    Raises:
        InvalidRequest: it is said in another way.
    """
    if isinstance(choice, str):
        if choice not in _MODES:
            raise InvalidRequest({TOOL_CHOICE: f"another word found, allowed is {', '.join(_MODES)} or a function"})
        return _MODES[choice]
    if isinstance(choice, dict) and choice.get("type") == ALLOWED:
        return _allowed(f"{TOOL_CHOICE}.{ALLOWED}", choice.get(ALLOWED))
    function = _of_type_function(TOOL_CHOICE, choice)
    return named(_text(f"{TOOL_CHOICE}.function.name", function.get("name")))


def _allowed(at: str, value: Any) -> ToolChoice:
    """A choice of some of the functions."""
    if not isinstance(value, dict):
        raise _wrong(at, value, "an object")
    mode, tools = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidRequest({f"{at}.mode": "another word found, allowed is auto or required"})
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest({f"{at}.tools": "no functions found, at least one is needed"})
    names = [
        _text(f"{at}.tools[{place}].function.name", _of_type_function(f"{at}.tools[{place}]", tool).get("name"))
        for place, tool in enumerate(tools)
    ]
    return ToolChoice(_MODES[mode].freedom, frozenset(names))


def _function(at: str, tool: Any) -> Function:
    function = _of_type_function(at, tool)
    at = f"{at}.function"
    parameters, description, strict = (function.get(name) for name in ("parameters", "description", "strict"))
    if not isinstance(parameters, dict | None):
        raise _wrong(f"{at}.parameters", parameters, "a JSON Schema, which is an object")
    if not isinstance(strict, bool | None):
        raise _wrong(f"{at}.strict", strict, "true or false")
    if description is not None:
        _text(f"{at}.description", description)
    return Function(_text(f"{at}.name", function.get("name")), description, parameters, bool(strict))


def _of_type_function(at: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(at, value, "an object")
    if value.get("type") not in (None, "function"):
        raise InvalidRequest({f"{at}.type": "another type found, allowed is function"})
    function = value.get("function")
    if not isinstance(function, dict):
        raise _wrong(f"{at}.function", function, "an object")
    return function


def _text(at: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(at, value, "a text")
    return value


def _wrong(at: str, value: Any, allowed: str) -> InvalidRequest:
    found = "missing" if value is None else f"{json_words.kind(value)} found"
    return InvalidRequest({at: f"{found}, allowed is {allowed}"})
