"""OpenAI's HTTP API of any gateway: the same answers as over gRPC, in its shapes."""

from typing import Any

import pytest
from http_calls import Http
from text_calls import Client

pytestmark = [pytest.mark.e2e, pytest.mark.model]

PROMPT = "It was the best of times"


def body(client: Client, **fields: Any) -> dict[str, Any]:
    return {"model": client.model.id, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields}


def test_a_completion_is_the_text_that_grpc_gives(client: Client, http: Http) -> None:
    text = client.generate(PROMPT, max_tokens=12).only
    asked = body(client, prompt=PROMPT)
    whole = http.json("/v1/completions", asked)
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == (text.text, "length", 0)
    usage = whole["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (text.usage.prompt_tokens, 12)
    assert usage["total_tokens"] == text.usage.prompt_tokens + 12
    chunks = http.events("/v1/completions", asked)
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == text.text
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "length"
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "text_completion", client.model.id)
    }


def test_usage_of_a_stream_comes_last_when_asked_for(client: Client, http: Http) -> None:
    asked = body(client, prompt=PROMPT, stream_options={"include_usage": True})
    *_, last = http.events("/v1/completions", asked)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12


def test_a_chat_is_the_message_that_grpc_gives(client: Client, http: Http) -> None:
    if not client.model.has_chat_template:
        pytest.skip("the model has no chat template")
    text = client.chat("Hello!", max_tokens=12).only
    asked = body(client, messages=[{"role": "user", "content": "Hello!"}])
    (choice,) = http.json("/v1/chat/completions", asked)["choices"]
    assert choice["message"]["role"] == "assistant"
    assert (choice["message"]["content"], choice["finish_reason"]) == (text.text, "length")
    deltas = [chunk["choices"][0]["delta"] for chunk in http.events("/v1/chat/completions", asked) if chunk["choices"]]
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    assert "".join(delta.get("content") or "" for delta in deltas) == text.text


def test_models_are_listed_and_shown(client: Client, http: Http) -> None:
    listed = http.json("/v1/models")
    assert listed["object"] == "list"
    assert client.model.id in {model["id"] for model in listed["data"]}
    assert http.json(f"/v1/models/{client.model.id}")["id"] == client.model.id


@pytest.mark.parametrize(
    ("path", "wrong", "status", "param"),
    [
        ("/v1/completions", {"prompt": PROMPT, "temperature": -1}, 400, "temperature"),
        ("/v1/completions", {"prompt": PROMPT, "n": 0}, 400, "n"),
        ("/v1/completions", {"prompt": PROMPT, "model": "no such model"}, 404, "model"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ],
)
def test_a_wrong_field_is_named(
    client: Client, http: Http, path: str, wrong: dict[str, Any], status: int, param: str
) -> None:
    error = http.json(path, body(client, **wrong), status)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_health_is_told(http: Http) -> None:
    assert http.send("/health")[0] == 200
    assert http.send("/v1/no/such/path")[0] == 404
