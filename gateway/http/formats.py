"""The fields of a body that constrain the output: OpenAI's ``response_format``, and what other servers know beside it.

All of them say the same thing, so a body has one of them at most.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway import json_words
from gateway.errors import InvalidRequest
from gateway.grammars import FORMAT, Grammar, one_of
from gateway.schemas import closed, schema_of

STRUCTURED = "structured_outputs"


class Format(NamedTuple):
    """What a body's output must match."""

    grammar: Grammar
    field: str
    """The field that says so."""


def format_of(fields: Mapping[str, Any]) -> Format | None:
    """The constraint of a body; None when its output is free.

    Raises:
        InvalidRequest: a field of another shape, or two of them.
    """
    given = [name for name in _READERS if name in fields]  # in their order, so that the same one is named each time
    if len(given) > 1:
        raise InvalidRequest({given[1]: f"found beside {given[0]}, one constraint is enough"})
    if not given:
        return None
    field = given[0]
    grammar = _READERS[field](field, fields[field])
    return None if grammar is None else Format(grammar, field)


def _response_format(at: str, value: Any) -> Grammar | None:
    match _object(at, value).get("type"):
        case "text":
            return None
        case "json_object":
            return Grammar("json_object", "")
        case "json_schema":
            wrapped = _object(f"{at}.json_schema", value.get("json_schema"))
            strict = wrapped.get("strict")
            if not isinstance(strict, bool | None):
                raise _wrong(f"{at}.json_schema.strict", strict, "true or false")
            schema = wrapped.get("schema")
            if strict and isinstance(schema, dict):
                schema = closed(schema)
            return _json_schema(f"{at}.json_schema.schema", schema)
        case other:
            found = "missing" if other is None else "an unknown type found"
            raise InvalidRequest({f"{at}.type": f"{found}, allowed is text, json_object or json_schema"})


def _structured_outputs(at: str, value: Any) -> Grammar | None:
    given = {name: one for name, one in _object(at, value).items() if one is not None}
    if len(given) != 1 or not given.keys() <= _STRUCTURES.keys():
        raise InvalidRequest({at: f"{len(given)} fields found, allowed is one of {', '.join(_STRUCTURES)}"})
    ((name, one),) = given.items()
    return _STRUCTURES[name](f"{at}.{name}", one)


def _json_schema(at: str, value: Any) -> Grammar:
    if isinstance(value, str):
        value = schema_of(at, value)
    if not isinstance(value, dict):
        raise _wrong(at, value, "a JSON Schema, which is an object")
    return Grammar("json_schema", json.dumps(value, ensure_ascii=False))


def _json_object(at: str, value: Any) -> Grammar | None:
    if not isinstance(value, bool):
        raise _wrong(at, value, "true or false")
    return Grammar("json_object", "") if value else None


def _regex(at: str, value: Any) -> Grammar:
    return Grammar("regex", _text(at, value))


def _lark(at: str, value: Any) -> Grammar:
    return Grammar("lark", _text(at, value))


def _choice(at: str, value: Any) -> Grammar:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _wrong(at, value, "an array of texts")
    return one_of(at, value)


_Reader = Callable[[str, Any], Grammar | None]

_STRUCTURES: Mapping[str, _Reader] = {
    "json": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}

_READERS: Mapping[str, _Reader] = {
    FORMAT: _response_format,
    STRUCTURED: _structured_outputs,
    "guided_json": _json_schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark,
}

FIELDS = frozenset(_READERS)


def _object(at: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(at, value, "an object")
    return value


def _text(at: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(at, value, "a text")
    return value


def _wrong(at: str, value: Any, allowed: str) -> InvalidRequest:
    found = "missing" if value is None else f"{json_words.kind(value)} found"
    return InvalidRequest({at: f"{found}, allowed is {allowed}"})
