"""The messages of a chat body, as chat templates read them."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway import json_words
from gateway.errors import InvalidRequest
from gateway.prompts import PROMPT
from gateway.text.call_arguments import read_arguments

# Both names that servers of OpenAI's API tell reasoning by.
REASONING = ("reasoning_content", "reasoning")

_TEXTS = ("name", "tool_call_id", *REASONING)
_OTHER_PARTS = ("image_url", "input_audio", "video_url", "file")


def messages_of(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The conversation, message by message.

    Raises:
        InvalidRequest: ``messages`` is missing or holds what is no message.
    """
    messages = document.get("messages")
    if messages is None:
        raise InvalidRequest({PROMPT: "missing, at least one message is needed"})
    if not isinstance(messages, list):
        raise InvalidRequest({PROMPT: f"{json_words.kind(messages)} found, allowed is an array of messages"})
    return (_message(f"{PROMPT}[{position}]", message) for position, message in enumerate(messages))


def _message(at: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest({at: f"{json_words.kind(message)} found, allowed is an object"})
    role = _text(f"{at}.role", message.get("role"))
    calls = message.get("tool_calls") or []
    plain: dict[str, Any] = {"role": role, "content": _content(at, message, calls)}
    for name in _TEXTS:
        if message.get(name) is not None:
            plain[name] = _text(f"{at}.{name}", message[name])
    if not isinstance(calls, list):
        raise InvalidRequest({f"{at}.tool_calls": f"{json_words.kind(calls)} found, allowed is an array"})
    if calls:
        plain["tool_calls"] = [_tool_call(f"{at}.tool_calls[{index}]", call) for index, call in enumerate(calls)]
    return plain


def _content(at: str, message: Mapping[str, Any], calls: Any) -> str:
    """The text of a message; parts are joined by line breaks, as most servers do. A refusal stands in its own field."""
    content = message.get("content")
    if content is None and (calls or any(message.get(name) is not None for name in REASONING)):
        return ""
    if content is None:
        content = message.get("refusal")
    if isinstance(content, list):
        return "\n".join(_part(f"{at}.content[{index}]", part) for index, part in enumerate(content))
    return _text(f"{at}.content", content)


def _part(at: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" or kind == "refusal":
        return _text(f"{at}.{kind}", part.get(kind))
    found = kind if kind in _OTHER_PARTS else "another part"
    raise InvalidRequest({at: f"{found} found, this model takes only parts of type text"})


def _tool_call(at: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidRequest({at: "no function found, allowed is a call of one"})
    if call.get("type") not in (None, "function"):
        raise InvalidRequest({f"{at}.type": "another type found, allowed is function"})
    try:
        arguments = read_arguments(_text(f"{at}.function.arguments", function.get("arguments") or ""))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest({f"{at}.function.arguments": "no JSON found"}) from error
    name = _text(f"{at}.function.name", function.get("name"))
    call_id = _text(f"{at}.id", call.get("id") or "")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text(at: str, value: Any) -> str:
    if not isinstance(value, str):
        found = "missing" if value is None else f"{json_words.kind(value)} found"
        raise InvalidRequest({at: f"{found}, allowed is a text"})
    return value
