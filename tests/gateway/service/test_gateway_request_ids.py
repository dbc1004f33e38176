"""The name of a request: from its client to the worker, in every log line about it, in every answer and every error."""

import hashlib
import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from octavo.gateway.v1 import gateway_pb2
from service.errors import status_of

pytestmark = pytest.mark.e2e

MADE = re.compile(r"[0-9a-f]{32}")
KEY = "a-key-of-this-test-0123456789"


@pytest.fixture
def worker(start_worker: Any) -> Any:
    return start_worker("--token-seconds", "0.002")


@pytest.fixture
def gateway(worker: Any, start_gateway: Any, tmp_path: Path) -> Any:
    """It has a tenant, so that calls can be refused before anything reads them."""
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(f'[tenants.one]\nkeys = ["{hashlib.sha256(KEY.encode()).hexdigest()}"]\n')
    gateway = start_gateway(worker.address, "--tenants", str(tenants), "--grace-seconds", "20")
    gateway.http = gateway.wait_event("ready")["http"]
    return gateway


def metadata(name: str = "", key: str = KEY) -> list[tuple[str, str]]:
    given = [("x-request-id", name)] if name else []
    return [*given, ("authorization", f"Bearer {key}")]


def asked(prompt: str = "abc", *, request_id: str = "", **options: Any) -> gateway_pb2.GenerateRequest:
    wanted = gateway_pb2.GenerateOptions(**{"max_tokens": 3, **options})
    return gateway_pb2.GenerateRequest(prompt=prompt, options=wanted, request_id=request_id)


def trailer_of(call: Any) -> str:
    return str(dict(call.trailing_metadata())["x-request-id"])


def logged(process: Any, name: str) -> dict[str, Any]:
    """The next line that a process logged about a request."""
    found: dict[str, Any] = process.wait_for(lambda event: event.get("request_id") == name and "level" in event)
    return found


@pytest.mark.parametrize(
    ("header", "own", "expected"),
    [
        ("", "", MADE),
        ("mine", "", re.compile(r"mine-[0-9a-f]{8}")),
        ("mine", "own name", re.compile("own name")),
        ("not plain", "", MADE),
        ("x" * 81, "", MADE),
    ],
)
def test_a_name_goes_to_the_worker_and_back(
    header: str, own: str, expected: re.Pattern[str], gateway: Any, worker: Any
) -> None:
    call = gateway.stub.Generate(asked(request_id=own), metadata=metadata(header), timeout=60)
    messages = list(call)
    (name,) = {message.header.request_id for message in messages}
    assert expected.fullmatch(name)
    assert worker.wait_event("request")["request_id"] == name
    assert logged(gateway, name)["message"].startswith("generation ended")
    # A name with a space is no header's value.
    assert dict(call.trailing_metadata()).get("x-request-id") == (None if " " in name else name)


def test_calls_without_a_worker_have_names_too(gateway: Any) -> None:
    stub = gateway.stub
    for method, request in (
        (stub.Tokenize, gateway_pb2.TokenizeRequest(text="abc")),
        (stub.Detokenize, gateway_pb2.DetokenizeRequest(token_ids=[1])),
        (stub.ListModels, gateway_pb2.ListModelsRequest()),
    ):
        response, call = method.with_call(request, metadata=metadata("t"), timeout=60)
        assert trailer_of(call) == response.header.request_id
        assert response.header.request_id.startswith("t-")


def test_every_error_over_grpc_names_its_request(gateway: Any) -> None:
    channel, path = gateway.channel, "/octavo.gateway.v1.GatewayService"
    whole = asked().SerializeToString()
    refused = {
        "its values": (asked(max_tokens=-1).SerializeToString(), KEY),
        "its model": (gateway_pb2.GenerateRequest(prompt="x", model="other").SerializeToString(), KEY),
        "its bytes": (b"\x12\x01\xff", KEY),
        "its worker": (asked("FULL").SerializeToString(), KEY),
        "its worker's end": (asked("BREAK").SerializeToString(), KEY),
        "its key": (whole, "another"),
    }
    for reason, (data, key) in refused.items():
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.unary_stream(f"{path}/Generate")(data, metadata=metadata("e", key), timeout=60))
        assert named_in(caught.value, gateway).startswith("e-"), reason
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"{path}/Tokenize")(b"\x12\x01\xff", metadata=metadata("u"), timeout=60)
    assert named_in(caught.value, gateway).startswith("u-")


def named_in(error: Any, gateway: Any) -> str:
    """The name in an error's trailer, which its details and the log have too."""
    name = trailer_of(error)
    infos = [info for detail in status_of(error).details if detail.Unpack(info := error_details_pb2.RequestInfo())]
    assert [info.request_id for info in infos] == [name]
    logged(gateway, name)
    return name


def test_every_answer_over_http_names_its_request(gateway: Any, worker: Any) -> None:
    for path, body, key, status in (
        ("/v1/completions", {"prompt": "abc", "max_tokens": 2}, KEY, 200),
        ("/v1/completions", {"prompt": "abc", "max_tokens": 2, "stream": True}, KEY, 200),
        ("/v1/completions", {"prompt": "abc", "max_tokens": 0}, KEY, 400),
        ("/v1/completions", {"prompt": "FULL", "max_tokens": 9}, KEY, 429),
        ("/v1/completions", {"prompt": "abc"}, "another", 401),
        ("/v1/chat/completions", {"messages": []}, KEY, 400),
        ("/v1/nowhere", {}, KEY, 404),
        ("/v1/models", {}, KEY, 405),
    ):
        found, name = post(gateway, path, body, key)
        assert (found, name[:2]) == (status, "h-"), path
        if path == "/v1/completions":
            logged(gateway, name)
        if found == 200:
            assert worker.wait_for(lambda event, name=name: event.get("request_id") == name)


def post(gateway: Any, path: str, body: Any, key: str) -> tuple[int, str]:
    headers = {"content-type": "application/json", "x-request-id": "h", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://{gateway.http}{path}", json.dumps(body).encode(), headers)
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        response.read()
        return response.status, response.headers["x-request-id"]


def test_prompts_of_one_body_share_its_name(gateway: Any, worker: Any) -> None:
    status, name = post(gateway, "/v1/completions", {"prompt": ["ab", "cd"], "max_tokens": 2}, KEY)
    assert status == 200
    assert {worker.wait_event("request")["request_id"] for _ in range(2)} == {f"{name}-0", f"{name}-1"}
    for _ in range(2):
        ended = gateway.wait_for(lambda event: str(event.get("message")).startswith("generation ended"))
        assert ended["request_id"] in {f"{name}-0", f"{name}-1"}


def test_who_is_refused_by_a_drain_hears_the_name(gateway: Any) -> None:
    running = gateway.stub.Generate(asked(max_tokens=100_000, ignore_eos=True), metadata=metadata(), timeout=60)
    next(running)
    gateway.signal(signal.SIGTERM)
    gateway.wait_for(lambda event: "draining" in str(event.get("message")))
    # The log line comes a moment before the door closes: a call may still get in. Who does not is answered by the
    # gateway within the first moment, by the transport later.
    refused: grpc.RpcError | None = None
    while refused is None:
        try:
            list(gateway.stub.Generate(asked(), metadata=metadata("late"), timeout=60))
        except grpc.RpcError as error:
            refused = error
    if status_of(refused) is not None:
        assert trailer_of(refused).startswith("late-")
    running.cancel()
