"""The fields of a request body become the values of the one table of parameters, or an error says which cannot.

A field that would change the answer is served or refused by name; fields of OpenAI's API that change no token are read
over; any other name is refused as OpenAI's API does, for it is a misspelling more often than not.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grpc

from gateway import json_words
from gateway.errors import InvalidRequest
from gateway.grammars import FORMAT
from gateway.http import formats, tool_fields
from gateway.parameters import TABLE, Call
from gateway.tools.functions import TOOL_CHOICE, TOOLS
from service.errors import ServiceError

NO_PARAMETER = "UNKNOWN_PARAMETER"

# They say on whose behalf or at what price a request runs, or who may keep it: nothing is kept here.
IGNORED = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

# Fields of OpenAI's API that are not served here, each with the values that ask for nothing. One that becomes served
# leaves this list; what it becomes in the table is then for `_converted` to say.
NOT_ASKED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}

# What took the place of a field of an earlier API.
_SUCCESSORS = {"functions": TOOLS, "function_call": TOOL_CHOICE}

# OpenAI's API has it for chats alone; load tools send both names everywhere.
NEWER_MAX_TOKENS = "max_completion_tokens"

# Not from the table: they shape the request or the response instead of the generation.
_COMMON = frozenset({"model", "stream", "stream_options", NEWER_MAX_TOKENS}) | formats.FIELDS
_OWN: Mapping[Call, frozenset[str]] = {
    Call.GENERATE: frozenset({"prompt"}),
    Call.CHAT: frozenset(
        {
            "messages",
            "top_logprobs",
            "continue_final_message",
            "add_generation_prompt",
            TOOLS,
            TOOL_CHOICE,
        }
    ),
}
# One comes as a header, the other is what echo means for logprobs.
_ELSEWHERE = frozenset({"request_id", "prompt_logprobs"})

_TOKEN_ID = re.compile(r"\d{1,18}", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)

# The second is not in OpenAI's API: load tools count tokens by it. The third asks for padding, which is never given.
STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})

# What other servers take for "all".
TOP_K_ALL = -1

# Up to here a double tells every whole number from the next one.
_EXACT = 2**53


class Given(NamedTuple):
    """What a body asks for, beside its prompt."""

    model: str
    """Empty when the body names none."""

    stream: bool
    include_usage: bool
    """Whether a stream ends with a chunk of usage."""

    continuous_usage: bool
    """Whether each chunk of a stream tells the usage so far."""

    continue_final_message: bool
    parameters: Mapping[str, Any]
    """Values by the table's names."""

    names: Mapping[str, str]
    """What the body called a parameter, where that is another name."""


def read(call: Call, document: Mapping[str, Any]) -> Given:
    """Sort the fields of a body; null counts as absent.

    Raises:
        ServiceError: INVALID_ARGUMENT for a field with a name that nobody knows.
        InvalidRequest: a field of the wrong shape, or one that is not served.
    """
    fields = {name: _whole(value) for name, value in document.items() if value is not None and name not in IGNORED}
    _check_names(call, fields)
    for name, unasked in NOT_ASKED.items():
        if name in fields and fields[name] in unasked:
            del fields[name]
        elif name in fields:
            successor = _SUCCESSORS.get(name) if call is Call.CHAT else None
            instead = f", but {successor} is, which took its place" if successor else ""
            raise InvalidRequest({name: f"not supported by this version{instead}"})
    options = _stream_options(fields)
    given = Given(
        model=_text(fields, "model"),
        stream=_flag(fields, "stream"),
        include_usage=_flag(options, "include_usage"),
        continuous_usage=_flag(options, "continuous_usage_stats"),
        continue_final_message=_continues(fields),
        parameters={},
        names={},
    )
    own = _COMMON | _OWN[call]
    parameters = {name: _converted(name, value) for name, value in fields.items() if name not in own}
    names: dict[str, str] = {}
    constraint = formats.format_of(fields)
    if constraint is not None:
        parameters[FORMAT], names[FORMAT] = constraint
    if NEWER_MAX_TOKENS in fields:
        value = fields[NEWER_MAX_TOKENS]
        if parameters.get("max_tokens", value) != value:
            raise InvalidRequest({"max_tokens": f"another number than {NEWER_MAX_TOKENS} found, one is enough"})
        parameters["max_tokens"], names["max_tokens"] = value, NEWER_MAX_TOKENS
    if call is Call.CHAT:
        for name, (source, value) in _chat_parameters(fields):
            parameters[name], names[name] = value, source
        parameters |= tool_fields.parameters_of(fields)
        if fields.get("logprobs") is False:
            parameters.pop("logprobs", None)
    elif parameters.get("echo") is True and "logprobs" in parameters:
        parameters["prompt_logprobs"] = parameters["logprobs"]
        names["prompt_logprobs"] = "logprobs"
    return given._replace(parameters=parameters, names=names)


def known(call: Call) -> set[str]:
    """The fields that a call's body may have."""
    table = {row.name for row in TABLE if row.calls & call} - _ELSEWHERE
    return table | _COMMON | _OWN[call] | IGNORED | NOT_ASKED.keys()


def _check_names(call: Call, fields: Mapping[str, Any]) -> None:
    names = known(call)
    unknown = fields.keys() - names
    if not unknown:
        return
    # Always the same one of them, and not by sorting: a body has room for a million.
    name = min(unknown)
    message = "Unrecognized request argument supplied: "
    named: dict[str, str] = {}
    if _IDENTIFIER.fullmatch(name):
        near = difflib.get_close_matches(name, sorted(names), n=1)
        message += name + (f"; did you mean {near[0]}?" if near else "")
        named = {name: message}
    else:
        # Text that a user wrote is no part of an error: errors are logged.
        message += "a name that is no identifier"
    raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, message, reason=NO_PARAMETER, fields=named)


def _whole(value: Any) -> Any:
    """JSON has one kind of number: languages without integers write 4.0 for 4."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT else value


def _converted(name: str, value: Any) -> Any:
    """A value as the table's kinds take it."""
    if name == "stop" and isinstance(value, str):
        return (value,)
    if name == "top_k" and value == TOP_K_ALL:
        return 0
    if name == "logit_bias" and isinstance(value, dict):
        if not all(_TOKEN_ID.fullmatch(key) for key in value):
            raise InvalidRequest({name: "a key that is no token id found, allowed are token ids as text"})
        return {int(key): bias for key, bias in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _chat_parameters(fields: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
    """The parameters that Chat calls by other names: (name, (name in the body, value))."""
    asked = _flag(fields, "logprobs")
    if "top_logprobs" in fields:
        if not asked and fields["top_logprobs"] != 0:
            raise InvalidRequest({"top_logprobs": "found without logprobs, which must be true for it"})
        if asked:
            yield "logprobs", ("top_logprobs", fields["top_logprobs"])
    elif asked:
        yield "logprobs", ("logprobs", 0)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequest({name: f"{json_words.kind(value)} found, allowed is a text"})
    return value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest({name: f"{json_words.kind(value)} found, allowed is true or false"})
    return value


def _stream_options(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    options = fields.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise InvalidRequest({"stream_options": f"{json_words.kind(options)} found, allowed is an object"})
    if not _flag(fields, "stream"):
        raise InvalidRequest({"stream_options": "found without stream, which must be true for it"})
    given = {name: value for name, value in options.items() if value is not None}
    if given.keys() - STREAM_OPTIONS:
        allowed = ", ".join(sorted(STREAM_OPTIONS))
        raise InvalidRequest({"stream_options": f"an unknown option found, allowed are {allowed}"})
    return given


def _continues(fields: Mapping[str, Any]) -> bool:
    """Whether the last message is gone on with; ``add_generation_prompt`` says the opposite of the same."""
    continues = _flag(fields, "continue_final_message")
    opens = _flag(fields, "add_generation_prompt") if "add_generation_prompt" in fields else not continues
    if opens is continues:
        raise InvalidRequest(
            {"add_generation_prompt": "found equal to continue_final_message, of which it is the opposite"}
        )
    return continues
