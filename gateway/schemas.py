"""JSON Schemas of clients: read, and made stricter. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from gateway import json_words
from gateway.errors import InvalidRequest

# Their values are schemas, by name or in a row.
_NAMED = ("properties", "$defs", "definitions")
_LISTED = ("prefixItems", "anyOf", "oneOf")

# Beside these, an object's own properties are not all it may have.
_JOINED = (
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    "if",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
)


def schema_of(at: str, text: str) -> dict[str, Any]:
    """A schema from its text, of at most 200 levels.

    Args:
        at: the field that it came in.
        text: JSON.

    Raises:
        InvalidRequest: it is no JSON, or no object.
    """
    try:
        schema = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest({at: "no JSON found, allowed is a JSON Schema"}) from error
    if not isinstance(schema, dict):
        raise InvalidRequest({at: f"{json_words.kind(schema)} found, allowed is a JSON Schema, which is an object"})
    return schema


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose objects have only the properties that they list, unless they say otherwise.

    JSON Schema allows any others, and a model that may add one more seldom knows an end. Clients who list properties
    mean these.
    """
    made = dict(schema)
    for word in _NAMED:
        if isinstance(made.get(word), dict):
            made[word] = {name: _closed(one) for name, one in made[word].items()}
    for word in _LISTED:
        if isinstance(made.get(word), list):
            made[word] = [_closed(one) for one in made[word]]
    if "items" in made:
        made["items"] = _closed(made["items"])
    if isinstance(made.get("properties"), dict) and not any(word in made for word in _JOINED):
        made["additionalProperties"] = False
    return made


def _closed(schema: Any) -> Any:
    return closed(schema) if isinstance(schema, dict) else schema
