"""Tenants over all three services: whose cache a prompt meets, whose blocks it may take, and that logs hold no text."""

import hashlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from processes import Stack, running_stack

from gateway.text.tokenizer import TOKENIZER_FILES, Tokenizer
from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model]

KEYS = {name: f"key-of-{name}-0123456789abcdef" for name in ("alice", "bob", "carol", "dave")}
WRONG_KEY = "key-of-nobody-0123456789abcdef"

TENANTS = "\n".join(
    f'[tenants.{name}]\nkeys = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n'
    + ('digest_root = "friends"\n' if name in ("carol", "dave") else "")
    + ("kv_hard_blocks = 8\n" if name == "bob" else "")
    for name, key in KEYS.items()
)

# It says what it refuses, as templates do; and is otherwise the plainest there is.
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tool: ' + message.content) }}"
    "{% endif %}{{ message.content }}{% endfor %}"
)

MARKER = "Zanzibarquokka"
"""In every prompt; no log may hold it."""


@pytest.fixture(scope="module")
def stack(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("tenants")
    tenants = folder / "tenants.toml"
    tenants.write_text(TENANTS)
    for name in TOKENIZER_FILES:
        if (demo_model / name).exists():
            shutil.copy(demo_model / name, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    everything = {"log-level": "debug"}
    with running_stack(
        demo_model,
        manager_flags=everything,
        worker_flags={**everything, "num-blocks": 64, "tenants": tenants},
        gateway_flags={
            **everything,
            "tenants": tenants,
            "tokenizer": folder,
            "http-listen": "127.0.0.1:0",
            "max-prompt-bytes": 4000,
        },
    ) as running:
        yield running


def stub(stack: Stack) -> gateway_pb2_grpc.GatewayServiceStub:
    return gateway_pb2_grpc.GatewayServiceStub(open_channel(stack.gateway.address))


def usage(stack: Stack, name: str, prompt: str, salt: str = "") -> gateway_pb2.Usage:
    options = gateway_pb2.GenerateOptions(max_tokens=2, ignore_eos=True, cache_salt=salt)
    request = gateway_pb2.GenerateRequest(prompt=prompt, options=options)
    metadata = [("authorization", f"Bearer {KEYS[name]}")]
    *_, last = stub(stack).Generate(request, timeout=120, metadata=metadata)
    return last.usage


def cached(stack: Stack, name: str, prompt: str, salt: str = "") -> int:
    return int(usage(stack, name, prompt, salt).cached_tokens)


def post(stack: Stack, path: str, body: object, key: str | None) -> int:
    """The status of an HTTP request."""
    headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
    url = f"http://{stack.gateway.ready['http']}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_prompt_meets_its_own_tenants_cache_and_nobody_elses(stack: Stack) -> None:
    """B04, from both sides: with caching off the zeros alone would pass too."""
    prompt = "The quick brown fox jumps over the lazy dog and runs away. " * 4
    tokens = usage(stack, "alice", prompt).prompt_tokens
    # Blocks of 16, and the last token is computed whatever is cached.
    whole = (tokens - 1) // 16 * 16
    assert tokens >= 40
    assert cached(stack, "alice", prompt) == whole
    assert cached(stack, "bob", prompt) == 0
    assert cached(stack, "bob", prompt) == whole
    # Those who both name a root share it, and with nobody who does not.
    assert cached(stack, "carol", prompt) == 0
    assert cached(stack, "dave", prompt) == whole
    # A salt splits a tenant's own cache; another tenant's salt opens nothing.
    assert cached(stack, "alice", prompt, salt="pepper") == 0
    assert cached(stack, "bob", prompt, salt="pepper") == 0
    assert cached(stack, "alice", prompt, salt="pepper") == whole


def test_the_http_surface_has_the_same_roots(stack: Stack) -> None:
    prompt = "Pack my box with five dozen liquor jugs, and then with five dozen more. " * 4
    body = {"prompt": prompt, "max_tokens": 1}
    assert post(stack, "/v1/completions", body, KEYS["carol"]) == 200
    assert cached(stack, "dave", prompt) > 0
    assert cached(stack, "alice", prompt) == 0


def test_a_tenant_never_uses_more_blocks_than_its_hard_limit(stack: Stack) -> None:
    # 8 blocks of 16 hold 128 tokens: a prompt of more can never run, and the manager says so.
    words = " word" * 200
    assert usage(stack, "alice", words).prompt_tokens > 128
    with pytest.raises(grpc.RpcError) as caught:
        usage(stack, "bob", words)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def schema(content: object) -> dict[str, object]:
    """A response_format that wants JSON of a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": content}}


def ask(stack: Stack, method: str, request: Any, key: str) -> None:
    answer = getattr(stub(stack), method)(request, timeout=120, metadata=[("x-api-key", key)])
    if method in ("Generate", "Chat"):
        list(answer)


def refused(stack: Stack, method: str, request: Any, key: str = KEYS["alice"]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        ask(stack, method, request, key)
    return caught.value


def test_no_log_of_any_service_holds_text_ids_or_keys(stack: Stack, demo_model: Path) -> None:
    """At debug level, after requests that succeed and requests that fail in every way that may quote them.

    The last test of the file: it ends the processes, to have read all that they will ever write.
    """
    text = f"Tell me about {MARKER} and {MARKER}"
    assert usage(stack, "alice", text).completion_tokens == 2
    message = {"role": "user", "content": text}
    assert post(stack, "/v1/chat/completions", {"messages": [message], "max_tokens": 2}, KEYS["alice"]) == 200
    assert post(stack, "/v1/completions", {"prompt": text, "stop": [MARKER], "max_tokens": 2}, KEYS["alice"]) == 200
    shape = schema({"type": "object", "properties": {MARKER: {"enum": [MARKER]}}, "required": [MARKER]})
    shaped = {"messages": [message], "response_format": shape, "max_tokens": 2}
    assert post(stack, "/v1/chat/completions", shaped, KEYS["alice"]) == 200

    options = gateway_pb2.GenerateOptions
    invalid, generate, chat = grpc.StatusCode.INVALID_ARGUMENT, gateway_pb2.GenerateRequest, gateway_pb2.ChatRequest
    failing = [
        ("Generate", generate(prompt=text, options=options(stop=[MARKER * 200]))),
        ("Generate", generate(prompt=text, options=options(bad_words=[MARKER * 50]))),
        ("Generate", generate(prompt=text, options=options(temperature=-1))),
        ("Generate", generate(prompt=text * 200)),
        ("Generate", generate(prompt=text, options=options(max_tokens=10**6))),
        ("Chat", chat(messages=[gateway_pb2.ChatMessage(role=MARKER, content=text)])),
        ("Tokenize", gateway_pb2.TokenizeRequest(text=text * 200)),
    ]
    for method, request in failing:
        assert refused(stack, method, request).code() is invalid, request
    # The template repeats what it refuses, and so does the answer to its client.
    by_template = refused(stack, "Chat", chat(messages=[gateway_pb2.ChatMessage(role="tool", content=text)]))
    assert (by_template.code(), MARKER in by_template.details()) == (invalid, True)
    assert refused(stack, "Generate", generate(prompt=text, model=MARKER)).code() is grpc.StatusCode.NOT_FOUND
    assert refused(stack, "Generate", generate(prompt=text), WRONG_KEY).code() is grpc.StatusCode.UNAUTHENTICATED
    bodies: list[tuple[str, object, int]] = [
        ("/v1/completions", {"prompt": text, MARKER: 1}, 400),
        ("/v1/completions", {"prompt": text, f"a {MARKER}": 1}, 400),
        ("/v1/completions", {"prompt": text, "model": MARKER}, 404),
        ("/v1/completions", {"prompt": text, "stop": [[MARKER]]}, 400),
        ("/v1/completions", {"prompt": [text, [MARKER]]}, 400),
        ("/v1/completions", {"prompt": text, "logit_bias": {MARKER: 1}}, 400),
        ("/v1/chat/completions", {"messages": [{**message, "role": "tool"}]}, 400),
        ("/v1/chat/completions", {"messages": [{**message, "content": [{"type": MARKER}]}]}, 400),
        ("/v1/chat/completions", {"messages": MARKER}, 400),
        ("/v1/chat/completions", {"messages": [message], "response_format": {"type": MARKER}}, 400),
        ("/v1/chat/completions", {"messages": [message], "response_format": schema({"type": MARKER})}, 400),
        ("/v1/chat/completions", {"messages": [message], "tools": [{"type": "function", "function": MARKER}]}, 400),
        ("/v1/chat/completions", [MARKER], 400),
        (f"/v1/{MARKER}", {}, 404),
    ]
    for path, body, status in bodies:
        assert post(stack, path, body, KEYS["alice"]) == status, body
    assert post(stack, "/v1/completions", {"prompt": text}, WRONG_KEY) == 401
    assert post(stack, "/v1/completions", {"prompt": text}, None) == 401

    ids = Tokenizer.from_folder(demo_model).encode(MARKER)
    assert len(ids) >= 3
    processes = {"manager": stack.manager, "worker": stack.worker, "gateway": stack.gateway}
    for name, process in processes.items():
        # All lines that will ever be: a process that has ended writes no more.
        assert process.stop() == 0, name
        log = "".join(process.log)
        assert log, name
        # An identifier that a body has as the name of a field is repeated, so that its writer finds the misspelling.
        told = log.replace(f"UNKNOWN_PARAMETER {MARKER}", "")
        for secret in (MARKER, str(list(ids))[1:-1], *KEYS.values(), WRONG_KEY):
            assert secret not in told, name
