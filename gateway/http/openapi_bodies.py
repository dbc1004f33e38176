"""The bodies of requests as JSON Schema: the table's kinds, and by hand only what the table does not hold. Pure."""

from collections.abc import Mapping
from math import inf
from typing import Any

from gateway.http import fields, formats
from gateway.http.completion_prompts import MAX_PROMPTS
from gateway.http.conversation import REASONING
from gateway.parameter_kinds import Biases, Boolean, Integer, Kind, Number, Text, Texts, TokenIds, Variables, Word
from gateway.parameters import BY_NAME, Call, Parameter
from gateway.tools.functions import MAX_FUNCTIONS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_ID: Schema = {"type": "integer", "minimum": 0}
_IDS: Schema = {"type": "array", "items": _ID, "minItems": 1}
_SCHEMA: Schema = {"type": "object", "description": "a JSON Schema"}
_CHOICE: Schema = {"type": "array", "items": _TEXT, "minItems": 1}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    others = {name: _or_null(schema) for name, schema in (optional or {}).items()}
    return {"type": "object", "properties": {**required, **others}, "required": [*required]}


def _or_null(schema: Schema) -> Schema:
    kind = schema.get("type")
    if kind == "null":
        return schema
    if isinstance(kind, str):
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def _const(value: str) -> Schema:
    return {"const": value}


_FUNCTION = _object(
    {"name": {"type": "string", "pattern": r"^[A-Za-z0-9_.-]{1,64}$"}},
    {"description": _TEXT, "parameters": _SCHEMA, "strict": _FLAG},
)
_CALL = _object(
    {"function": _object({"name": _TEXT}, {"arguments": {"type": "string", "description": "a JSON document"}})},
    {"id": _TEXT, "type": _const("function")},
)
_PART = _object({"type": _const("text"), "text": _TEXT})
_MESSAGE = _object(
    {"role": {"enum": ["system", "developer", "user", "assistant", "tool"]}},
    {
        "content": {"anyOf": [_TEXT, {"type": "array", "items": _PART}]},
        "name": _TEXT,
        **dict.fromkeys(REASONING, _TEXT),
        "tool_call_id": _TEXT,
        "tool_calls": {"type": "array", "items": _CALL},
    },
)
_STRUCTURES: Mapping[str, Schema] = {
    "json": {"anyOf": [_SCHEMA, _TEXT]},
    "regex": _TEXT,
    "choice": _CHOICE,
    "grammar": _TEXT,
}

# What is no plain value: the fields of the bodies alone, and those of the table that other modules read.
_WRITTEN: Mapping[str, Schema] = {
    "model": _TEXT | {"description": "a served model's name; absent: the only one"},
    "stream": _FLAG | {"description": "answers with server-sent events"},
    "stream_options": _object({}, dict.fromkeys(sorted(fields.STREAM_OPTIONS), _FLAG)),
    "prompt": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            _IDS,
            {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MAX_PROMPTS},
            {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
        ]
    },
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "continue_final_message": _FLAG | {"description": "goes on with the last message instead of opening a new one"},
    "add_generation_prompt": _FLAG | {"description": "the opposite of continue_final_message"},
    "response_format": {
        "oneOf": [
            _object({"type": _const("text")}),
            _object({"type": _const("json_object")}),
            _object(
                {
                    "type": _const("json_schema"),
                    "json_schema": _object({"schema": _SCHEMA}, {"name": _TEXT, "strict": _FLAG}),
                }
            ),
        ]
    },
    formats.STRUCTURED: {
        "oneOf": [
            _object({name: schema}) | {"additionalProperties": False}
            for name, schema in {**_STRUCTURES, "json_object": _FLAG}.items()
        ]
    },
    **{f"guided_{name}": schema for name, schema in _STRUCTURES.items()},
    "tools": {
        "type": "array",
        "items": _object({"function": _FUNCTION}, {"type": _const("function")}),
        "maxItems": MAX_FUNCTIONS,
    },
    "tool_choice": {
        "anyOf": [
            {"enum": ["none", "auto", "required"]},
            _object({"function": _object({"name": _TEXT})}, {"type": _const("function")}),
        ]
    },
}


def body_of(call: Call) -> Schema:
    """The schema of a call's body: every field that it may have, and no other."""
    prompt = "messages" if call is Call.CHAT else "prompt"
    properties = {name: _or_null(_field(call, name)) for name in sorted(fields.known(call)) if name != prompt}
    return {
        "type": "object",
        "properties": {prompt: _WRITTEN[prompt], **properties},
        "required": [prompt],
        "additionalProperties": False,
    }


def _field(call: Call, name: str) -> Schema:
    if name in fields.IGNORED:
        return {}
    if name in fields.NOT_ASKED:
        served = [*fields.NOT_ASKED[name]]
        return {"enum": served, "description": "not supported by this version"} if served else {"type": "null"}
    if call is Call.CHAT and name == "logprobs":
        return _FLAG | {"description": "asks for log-probabilities"}
    if call is Call.CHAT and name == "top_logprobs":
        return _row(BY_NAME["logprobs"])
    if name == fields.NEWER_MAX_TOKENS:
        return _row(BY_NAME["max_tokens"])
    return _WRITTEN[name] if name in _WRITTEN else _row(BY_NAME[name])


def _row(row: Parameter) -> Schema:
    """A parameter of the table, with what bodies write in another way."""
    schema = schema_of(row.kind)
    if row.served is not None:
        schema = {"enum": [*row.served]}
    if row.name == "stop":
        schema = {"anyOf": [schema["items"], schema]}
    if row.name == "top_k":
        schema["minimum"] = fields.TOP_K_ALL
    return {**schema, "description": row.meaning}


def schema_of(kind: Kind) -> Schema:
    """A kind of value, as far as JSON Schema can say it: bytes are counted as characters, which are no more.

    Raises:
        TypeError: a kind that is none of these; its fields are written by hand.
    """
    match kind:
        case Integer():
            return {"type": "integer", "minimum": kind.low, "maximum": kind.high}
        case Number():
            low = {} if kind.low == -inf else {"exclusiveMinimum" if kind.above_low else "minimum": kind.low}
            return {"type": "number", **low, **({} if kind.high == inf else {"maximum": kind.high})}
        case Boolean():
            return dict(_FLAG)
        case Text():
            return {"type": "string", "minLength": min(1, kind.min_bytes), "maxLength": kind.max_bytes}
        case Word():
            return {"enum": [*kind.words]}
        case Texts():
            element = schema_of(Text(kind.max_bytes, min_bytes=1))
            return {"type": "array", "items": element, "maxItems": kind.max_count}
        case TokenIds():
            return {"type": "array", "items": _ID, "maxItems": kind.max_count}
        case Biases():
            bias = {"type": "number", "minimum": -kind.limit, "maximum": kind.limit}
            return {"type": "object", "propertyNames": {"pattern": "^[0-9]{1,18}$"}, "additionalProperties": bias}
        case Variables():
            names = {"not": {"enum": sorted(kind.taken)}}
            return {"type": "object", "maxProperties": kind.max_count, "propertyNames": names}
    raise TypeError(f"{type(kind).__name__} has no schema of its own")
