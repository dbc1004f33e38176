"""Errors speak of values as clients know them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import json_words
from gateway.errors import InvalidRequest
from gateway.parameters import TABLE, Call, validate

KINDS = {"null": None, "boolean": False, "number": 1.5, "string": "text", "array": [1], "object": {"a": 1}}


@pytest.mark.unit
def test_kinds_are_those_of_json() -> None:
    assert {json_words.kind(value): value for value in KINDS.values()} == KINDS
    assert json_words.kind((1, 2)) == "array"


@pytest.mark.property
@given(st.integers(-(10**60), 10**60) | st.floats(allow_nan=False))
def test_a_number_is_told_exactly_or_by_its_size(value: float) -> None:
    told = json_words.number(value)
    if told.startswith("a number"):
        assert abs(value) >= 10**json_words.MAX_DIGITS
    else:
        assert json.loads(told) == value


@pytest.mark.unit
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"seed": 2**70}, "seed: 1180591620717411303424 found, "),
        ({"n": 1.5}, "n: 1.5 found, "),
        ({"n": "1"}, "n: string found, "),
        ({"n": 10**400}, "n: a number of more than 40 digits found, "),
        ({"temperature": 10**400}, "temperature: a number of more than 40 digits found, "),
        ({"temperature": float("inf")}, "temperature: a number beyond 1.79e308 found, "),
        ({"temperature": float("nan")}, "temperature: nan found, "),
        ({"top_p": 1.0000001}, "top_p: 1.0000001 found, "),
        ({"stop": {"a": 1}}, "stop: object found, "),
        ({"stop": ("a", 7)}, "stop[1]: number found, "),
        ({"stop_token_ids": (1, 2.5)}, "stop_token_ids[1]: 2.5 found, "),
        ({"logit_bias": {2**70: 1.0}}, f"logit_bias[{2**70}]: {2**70} found, "),
        ({"ignore_eos": 1}, "ignore_eos: number found, "),
        ({"cache_salt": None}, "cache_salt: null found, "),
    ],
)
def test_a_problem_shows_what_was_given(values: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate(Call.GENERATE, values, 1000)
    assert str(caught.value).startswith(said)


@pytest.mark.unit
@pytest.mark.parametrize("given_value", [*KINDS.values(), 2**70], ids=[*KINDS, "large"])
def test_no_parameter_tells_a_type_of_python(given_value: object) -> None:
    said: list[str] = []
    for row in TABLE:
        try:
            validate(Call.CHAT if row.calls & Call.CHAT else Call.GENERATE, {row.name: given_value}, 1000)
        except InvalidRequest as error:
            said.append(str(error))
    assert said
    words = set(" ".join(said).replace(",", "").split())
    assert not words & {"str", "int", "float", "bool", "list", "dict", "tuple", "NoneType"}
