"""The table of parameters: every bad value is named, all at once, and what cannot be served is refused."""

import math
from dataclasses import fields
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.messages import given_parameters, spelled_for
from gateway.parameters import BY_NAME, MAX_PROBLEMS, TABLE, Call, Parameters, validate
from octavo.gateway.v1 import gateway_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit

VOCAB_SIZE = 100


def problems(**values: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        validate(Call.GENERATE, values, VOCAB_SIZE)
    return caught.value.problems


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("max_tokens", 10**400),
        ("min_tokens", -1),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 10**400),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 2.0),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("priority", 2**31),
        ("n", 0),
        ("n", 129),
        ("best_of", 0),
        ("beam_width", 0),
        ("length_penalty", math.nan),
        ("typical_p", 0.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -3.0),
        ("logit_bias", 5.0),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("bad_words", ["x"] * 65),
        ("bad_words", "text"),
        ("response_format", object()),
        ("adapter", "lora"),
        ("cache_salt", "s" * 129),
        ("request_id", "é" * 65),
        ("stop", ["x"] * 17),
        ("stop", "text"),
        ("ignore_eos", 1),
    ],
)
def test_a_bad_value_is_named(name: str, value: Any) -> None:
    found = problems(**{name: value})
    assert list(found) == [name]
    assert len(found[name]) < 200


def test_elements_are_named_by_their_place() -> None:
    found = problems(stop=["ok", "", "é" * 513], stop_token_ids=[0, 99, 100, -1])
    assert set(found) == {"stop[1]", "stop[2]", "stop_token_ids[2]", "stop_token_ids[3]"}
    assert found["stop[2]"] == "1026 bytes found, allowed is text of 1 to 1024 bytes"
    assert found["stop_token_ids[2]"] == "100 found, allowed is a token id from 0 to 99"


def test_biases_are_named_by_their_token() -> None:
    """B64: whatever an id or a bias is, it is refused by name before any worker hears of it."""
    biases = {-1: 0.0, 100: 0.0, 10**9: 0.0, "AI": 0.0, 1: 101.0, 2: -101.0, 3: math.nan}
    found = problems(logit_bias=biases)
    assert set(found) == {f"logit_bias[{token}]" for token in biases}
    assert found["logit_bias[100]"] == "100 found, allowed is a whole number from 0 to 99"
    assert found["logit_bias[1]"] == "101 found, allowed is a finite number at least -100 and at most 100"
    assert validate(Call.GENERATE, {"logit_bias": {0: 100, 99: -100.0}}, VOCAB_SIZE).logit_bias == {0: 100, 99: -100.0}


def test_what_a_version_takes_is_named() -> None:
    refused = problems(adapter="lora")
    assert refused["adapter"] == "not supported by this version, which takes only the empty text"


def test_all_problems_are_told_at_once_but_no_flood() -> None:
    assert set(problems(max_tokens=0, top_p=0, temperature=math.nan)) == {"max_tokens", "top_p", "temperature"}
    assert len(problems(stop_token_ids=[-1] * 100)) == MAX_PROBLEMS


def test_text_of_the_user_is_in_no_problem() -> None:
    assert "secret" not in str(problems(stop=["secret" * 500], request_id="secret" * 500, cache_salt="secret" * 500))


def test_min_tokens_must_not_exceed_max_tokens() -> None:
    assert set(problems(max_tokens=3, min_tokens=4)) == {"min_tokens"}
    assert validate(Call.GENERATE, {"max_tokens": 4, "min_tokens": 4}, VOCAB_SIZE).min_tokens == 4


@pytest.mark.parametrize("most", ["best_of", "beam_width"])
def test_no_more_answers_are_returned_than_generated(most: str) -> None:
    assert problems(n=4, **{most: 3}) == {"n": f"4 found, allowed is at most {most}, which is 3"}
    assert validate(Call.CHAT, {"n": 3, most: 3}, VOCAB_SIZE).n == 3


def test_beams_are_not_the_best_of_samples() -> None:
    assert set(problems(best_of=4, beam_width=4)) == {"best_of"}


@pytest.mark.parametrize(("name", "value"), [("length_penalty", 2.0), ("early_stopping", True)])
def test_what_only_beams_have_is_not_taken_and_ignored(name: str, value: Any) -> None:
    assert list(problems(**{name: value})) == [name]
    assert getattr(validate(Call.GENERATE, {name: value, "beam_width": 2}, VOCAB_SIZE), name) == value
    # Some clients send every field's default.
    assert validate(Call.GENERATE, {name: BY_NAME[name].default}, VOCAB_SIZE) == Parameters()


def test_a_parameter_of_another_call_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="echo: no parameter of this call"):
        validate(Call.CHAT, {"echo": True}, VOCAB_SIZE)
    assert validate(Call.GENERATE, {"echo": True}, VOCAB_SIZE).echo


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0, "top_p": 1, "min_p": 1.0, "top_k": 0, "max_tokens": 1},
        {"n": 128, "best_of": 128, "typical_p": 1.0, "repetition_penalty": 1, "presence_penalty": 0.0, "adapter": ""},
        {"typical_p": 0.5, "repetition_penalty": 1.1, "presence_penalty": -2, "frequency_penalty": 2, "logprobs": 0},
        {"bad_words": ["x" * 128] * 64, "logprobs": 20, "prompt_logprobs": 20},
        {"stop": ["x" * 1024] * 16, "stop_token_ids": [0, 99], "seed": -(2**63), "request_id": "é" * 64},
    ],
)
def test_bounds_themselves_are_allowed(values: dict[str, Any]) -> None:
    chosen = validate(Call.ANY, values, VOCAB_SIZE)
    for name, value in values.items():
        if name in {field.name for field in fields(Parameters)}:
            assert getattr(chosen, name) == value


def test_defaults_of_the_table_are_those_of_the_values() -> None:
    assert validate(Call.GENERATE, {}, VOCAB_SIZE) == Parameters()


def test_the_table_covers_every_option_of_the_proto() -> None:
    assert set(gateway_pb2.GenerateOptions.DESCRIPTOR.fields_by_name) <= set(BY_NAME)
    assert len(BY_NAME) == len(TABLE)
    # A parameter is served, so a field of Parameters, or it is refused unless it says what happens anyway.
    for parameter in TABLE:
        assert (parameter.name in Parameters.__dataclass_fields__) == (parameter.served is None)


def test_a_request_gives_what_was_set_and_errors_spell_its_paths() -> None:
    options = gateway_pb2.GenerateOptions(temperature=0, stop=["a"], logit_bias={1: 2.0}, presence_penalty=0)
    request = gateway_pb2.GenerateRequest(prompt="x", options=options, echo=True, request_id="r")
    assert given_parameters(request) == {
        "temperature": 0.0,
        "stop": ("a",),
        "logit_bias": {1: 2.0},
        "presence_penalty": 0.0,
        "echo": True,
        "request_id": "r",
    }
    with pytest.raises(ServiceError) as caught, spelled_for(request):
        raise InvalidRequest({"stop[1]": "a", "request_id": "b", "prompt": "c"})
    assert caught.value.fields == {"options.stop[1]": "a", "request_id": "b", "prompt": "c"}
    assert caught.value.message == "options.stop[1]: a; request_id: b; prompt: c"
