"""What any gateway refuses and how, and what becomes of a call whose client leaves."""

from collections.abc import Callable
from typing import Any

import pytest
from common_calls import check_health, check_reflection, check_unknown_calls
from pool_view import PoolView
from text_calls import Client, clean_piece, turns
from wire_errors import refusal

from octavo.gateway.v1 import gateway_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.model]

SERVICE = "octavo.gateway.v1.GatewayService"
PROMPT = "Once upon a time"

# Bounds that the proto's comments give.
WRONG_OPTIONS: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("min_tokens", -1),
    ("temperature", -0.5),
    ("temperature", float("nan")),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.5),
    ("min_p", 1.5),
    ("typical_p", 0.0),
    ("repetition_penalty", 0.0),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("n", 0),
    ("beam_width", 0),
    ("logprobs", 21),
    ("prompt_logprobs", -1),
]
WRONG_ELEMENTS: list[tuple[str, dict[str, Any]]] = [
    ("options.stop[1]", {"stop": ["a", ""]}),
    ("options.stop", {"stop": ["a"] * 17}),
    ("options.stop_token_ids[0]", {"stop_token_ids": [-1]}),
    ("options.logit_bias[3]", {"logit_bias": {3: 101.0}}),
    ("options.bad_words[0]", {"bad_words": [""]}),
    ("options.min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    ("options.n", {"n": 3, "best_of": 2}),
    ("options.response_format", {"response_format": gateway_pb2.ResponseFormat(regex="("), "ignore_eos": False}),
]


@pytest.mark.parametrize(("option", "value"), WRONG_OPTIONS)
def test_a_wrong_option_is_named(client: Client, option: str, value: Any) -> None:
    found = refusal(lambda: client.generate(PROMPT, **{option: value}), "INVALID_ARGUMENT")
    assert list(found.fields) == [f"options.{option}"]


@pytest.mark.parametrize(("path", "options"), WRONG_ELEMENTS, ids=[path for path, _ in WRONG_ELEMENTS])
def test_a_wrong_element_is_named(client: Client, path: str, options: dict[str, Any]) -> None:
    found = refusal(lambda: client.generate(PROMPT, **options), "INVALID_ARGUMENT")
    assert [field for field in found.fields if field.startswith(path)], found


def test_all_wrong_values_are_named_at_once_and_explained(client: Client) -> None:
    found = refusal(lambda: client.generate(PROMPT, top_p=2.0, n=0), "INVALID_ARGUMENT")
    assert found.fields.keys() == {"options.top_p", "options.n"}
    assert all(found.fields.values())


def test_a_prompt_is_there_and_fits(client: Client) -> None:
    assert list(refusal(lambda: client.generate(""), "INVALID_ARGUMENT").fields) == ["prompt"]
    assert list(refusal(lambda: client.generate([]), "INVALID_ARGUMENT").fields) in (["prompt"], ["token_ids.ids"])
    vocabulary, context = client.model.vocab_size, client.model.max_context
    outside = refusal(lambda: client.generate([1, vocabulary]), "INVALID_ARGUMENT")
    assert [field for field in outside.fields if field.startswith("token_ids.ids")]
    long = refusal(lambda: client.generate([1] * context), "INVALID_ARGUMENT")
    assert list(long.fields) == ["token_ids.ids"]
    too_much = refusal(lambda: client.generate([1] * 8, max_tokens=context), "INVALID_ARGUMENT")
    assert list(too_much.fields) == ["options.max_tokens"]


def test_a_conversation_has_messages_of_known_roles(client: Client) -> None:
    if not client.model.has_chat_template:
        pytest.skip("the model has no chat template")

    def ask(*messages: gateway_pb2.ChatMessage) -> None:
        list(client.stub.Chat(gateway_pb2.ChatRequest(model=client.model.id, messages=messages), timeout=60))

    assert list(refusal(ask, "INVALID_ARGUMENT").fields) == ["messages"]
    wrong = refusal(lambda: ask(*turns("Hi"), gateway_pb2.ChatMessage(role="robot")), "INVALID_ARGUMENT")
    assert list(wrong.fields) == ["messages[1].role"]


def test_an_unknown_model_is_named_with_those_that_are_served(client: Client) -> None:
    asked = gateway_pb2.GenerateRequest(model="no such model", prompt=PROMPT)
    found = refusal(lambda: list(client.stub.Generate(asked, timeout=60)), "NOT_FOUND")
    assert found.reason == "UNKNOWN_MODEL"
    assert client.model.id in found.message


def test_a_name_is_short(client: Client) -> None:
    found = refusal(lambda: client.generate(PROMPT, {"request_id": "x" * 129}), "INVALID_ARGUMENT")
    assert list(found.fields) == ["request_id"]


def test_a_service_that_refused_goes_on(client: Client) -> None:
    refusal(lambda: client.generate(PROMPT, n=0), "INVALID_ARGUMENT")
    assert len(client.generate(PROMPT, max_tokens=3).only.tokens) == 3


def cancel(client: Client) -> None:
    stream = client.open(PROMPT, max_tokens=client.endless)
    next(stream)
    stream.cancel()


def cancel_early(client: Client) -> None:
    client.open(PROMPT, max_tokens=client.endless).cancel()


def let_the_deadline_pass(client: Client) -> None:
    request = client.request(PROMPT, {}, max_tokens=client.endless)
    refusal(lambda: list(client.stub.Generate(request, timeout=0.3)), "DEADLINE_EXCEEDED")


def stop_by_a_string(client: Client) -> None:
    """The worker does not know of stop strings."""
    stop = clean_piece(client.generate(PROMPT, max_tokens=48).only.text)
    assert client.generate(PROMPT, max_tokens=client.endless, stop=[stop]).only.reason == "STOP"


@pytest.mark.parametrize("leave", [cancel, cancel_early, let_the_deadline_pass, stop_by_a_string])
def test_a_client_that_leaves_leaves_nothing(client: Client, pool: PoolView, leave: Callable[[Client], None]) -> None:
    leave(client)
    pool.check_free_soon()


def test_health_reflection_and_unknown_calls(channel_to: Any) -> None:
    channel = channel_to("gateway")
    check_health(channel, SERVICE)
    check_reflection(channel, SERVICE)
    check_unknown_calls(channel, SERVICE)
