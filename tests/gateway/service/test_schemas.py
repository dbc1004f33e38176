"""A closed schema allows what the open one lists, and nothing beside it; what says more of itself stays as it is."""

from typing import Any

import pytest

from gateway.schemas import closed

pytestmark = pytest.mark.unit

TEXT = {"type": "string"}
OBJECT = {"type": "object", "properties": {"a": TEXT}}
CLOSED = {**OBJECT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT, TEXT),
        ({}, {}),
        ({"type": "object"}, {"type": "object"}),
        (OBJECT, CLOSED),
        ({"properties": {"b": OBJECT}}, {"properties": {"b": CLOSED}, "additionalProperties": False}),
        ({"items": OBJECT, "prefixItems": [OBJECT, True]}, {"items": CLOSED, "prefixItems": [CLOSED, True]}),
        ({"anyOf": [OBJECT, TEXT], "$defs": {"x": OBJECT}}, {"anyOf": [CLOSED, TEXT], "$defs": {"x": CLOSED}}),
        # A property may have the name of a word.
        ({"properties": {"properties": OBJECT}}, {"properties": {"properties": CLOSED}, "additionalProperties": False}),
        *(
            (open_, open_)
            for open_ in (
                {**OBJECT, "additionalProperties": TEXT},
                {**OBJECT, "patternProperties": {"^x": TEXT}},
                {**OBJECT, "allOf": [OBJECT]},
                {**OBJECT, "$ref": "#/$defs/x"},
                {"items": [1, OBJECT]},
                {"properties": 7},
            )
        ),
    ],
)
def test_objects_close(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected
