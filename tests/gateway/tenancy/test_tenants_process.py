"""A real gateway with tenants before a toy worker: who is let in, what is refused until when, and whose turn it is."""

import hashlib
import random
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from gateway_http import Http
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.servicer import SERVICE
from octavo.gateway.v1 import gateway_pb2
from service.errors import error_info_of, status_of

pytestmark = pytest.mark.e2e

HERE = Path(__file__).resolve().parent
ENDLESS = 1_000_000
COMPLETIONS = "/v1/completions"

KEYS = {name: f"{name}-key-0123456789" for name in ("plain", "boss", "rated", "single", "metered", "small", "short")}

ROWS = {
    "plain": "weight = 1",
    "boss": "operator = true\nbest_priority = -5",
    "rated": "requests_per_second = 0.02\nburst = 2",
    "single": "concurrent_requests = 1",
    "metered": "tokens_per_minute = 100",
    "small": "max_prompt_tokens = 4\nmax_tokens = 6",
    "short": "queued_requests = 1",
}


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenants_file(rows: dict[str, str]) -> str:
    return "\n".join(f'[tenants.{name}]\nkeys = ["{digest(KEYS[name])}"]\n{row}' for name, row in rows.items())


@pytest.fixture(scope="module")
def processes() -> Any:
    return sys.modules["gateway_processes"]


@pytest.fixture(scope="module")
def toy(processes: Any) -> Iterator[Any]:
    worker = processes.Child([str(HERE.parent / "service" / "toy_worker.py"), "--token-seconds", "0.005"])
    worker.address = str(worker.wait_event("ready")["grpc"])
    yield worker
    worker.end()


@pytest.fixture(scope="module")
def gateway(processes: Any, toy: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """At most two samples at the worker at once."""
    path = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    path.write_text(tenants_file(ROWS))
    origin = ("--http-cors-origins", "https://page.test")
    gateway = processes.Gateway(["--workers", toy.address, "--tenants", str(path), "--max-running", "2", *origin])
    gateway.http = Http(gateway.wait_event("ready")["http"])
    gateway.tenants = path
    yield gateway
    gateway.end()


def bearer(name: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {KEYS[name]}")]


def open_stream(
    gateway: Any, name: str, prompt: str = "abc", max_tokens: int = ENDLESS, timeout: float = 60, **options: Any
) -> Any:
    """A call that may wait: nothing of it was read."""
    given = gateway_pb2.GenerateOptions(max_tokens=max_tokens, ignore_eos=True, **options)
    request = gateway_pb2.GenerateRequest(prompt=prompt, options=given)
    return gateway.stub.Generate(request, timeout=timeout, metadata=bearer(name))


def failure(stream: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    return caught.value


def reason(error: grpc.RpcError) -> str:
    info = error_info_of(error)
    assert info is not None
    return info.reason


def retry_seconds(error: grpc.RpcError) -> float:
    for detail in getattr(status_of(error), "details", ()):
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToMilliseconds() / 1000)
    raise AssertionError("no RetryInfo")


def metric(gateway: Any, name: str, tenant: str, **labels: str) -> float:
    """A value of the page; 0 for one that is not there yet."""
    page = gateway.http.get("/metrics", authorization=f"Bearer {KEYS['boss']}").body.decode()
    wanted = {"tenant": tenant, **labels}
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        if series.startswith(f"{name}{{") and all(f'{key}="{said}"' in series for key, said in wanted.items()):
            return float(value)
    return 0.0


class Full:
    """Both places taken by endless streams of ``plain``; frees them one by one, and all at the end."""

    def __init__(self, gateway: Any, toy: Any) -> None:
        self._toy = toy
        self._streams = [open_stream(gateway, "plain", prompt="full") for _ in range(2)]
        for stream in self._streams:
            next(stream)

    def free_one(self) -> None:
        self._streams.pop().cancel()

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.cancel()


def test_no_method_is_served_without_a_key_but_health_and_reflection(gateway: Any) -> None:
    methods = gateway_pb2.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]].methods
    assert len(methods) >= 5
    for method in methods:
        # Bytes, so that methods that come later are asked too; they are refused before anybody looks at them.
        call = gateway.channel.unary_stream(f"/{SERVICE}/{method.name}")
        for metadata, said in (
            ([], "MISSING_API_KEY"),
            ([("authorization", "Bearer nobodys")], "INVALID_API_KEY"),
            ([("authorization", f"Basic {KEYS['plain']}")], "MISSING_API_KEY"),
            ([("x-api-key", KEYS["plain"][:-1])], "INVALID_API_KEY"),
        ):
            error = failure(call(b"\xff no message", timeout=60, metadata=metadata))
            assert (error.code(), reason(error)) == (grpc.StatusCode.UNAUTHENTICATED, said), method.name
    health = health_pb2_grpc.HealthStub(gateway.channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
    listed = next(
        reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=60)
    )
    assert SERVICE in {service.name for service in listed.list_services_response.service}


def test_a_key_is_taken_in_any_of_three_headers(gateway: Any) -> None:
    request = gateway_pb2.ListModelsRequest()
    plain = KEYS["plain"]
    written = ("authorization", f"bearer  {plain} "), ("x-api-key", plain), ("api-key", plain)
    for metadata in (bearer("plain"), *([pair] for pair in written)):
        assert [model.id for model in gateway.stub.ListModels(request, timeout=60, metadata=metadata).models] == [
            "bytes"
        ]


def test_no_page_is_served_without_a_key_but_health(gateway: Any) -> None:
    http = gateway.http
    for path in ("/v1/models", "/v1/models/bytes", "/metrics", "/nowhere"):
        for headers, code in (({}, "missing_api_key"), ({"authorization": "Bearer nobodys"}, "invalid_api_key")):
            answer = http.get(path, **headers)
            assert (answer.status, answer.error["type"], answer.error["code"]) == (401, "authentication_error", code)
            assert answer.headers["www-authenticate"] == "Bearer"
    for path in (COMPLETIONS, "/v1/chat/completions"):
        # The body is not read: nobody waits for what its length promises.
        assert http.post(path, b"", content_length="1000").status == 401
    assert (http.get("/health").status, http.get("/livez").status) == (200, 200)
    assert http.get("/v1/models", authorization=f"Bearer {KEYS['plain']}").status == 200
    for header in ("x-api-key", "api-key"):
        assert http.get("/v1/models", **{header: KEYS["plain"]}).status == 200
    # A page's browser asks first, without a key, and may read what it is refused for.
    origin = {"origin": "https://page.test"}
    asks = b"host: t\r\norigin: https://page.test\r\naccess-control-request-method: GET\r\n"
    assert http.send(b"OPTIONS /v1/models HTTP/1.1\r\n" + asks + b"\r\n").status == 200
    refused = http.get("/v1/models", **origin)
    assert refused.headers["access-control-allow-origin"] == "https://page.test"
    assert "retry-after" in refused.headers["access-control-expose-headers"]


def test_only_an_operator_sees_the_metrics_of_all(gateway: Any) -> None:
    refused = gateway.http.get("/metrics", authorization=f"Bearer {KEYS['plain']}")
    assert (refused.status, refused.error["code"]) == (403, "operators_only")
    assert gateway.http.get("/metrics", authorization=f"Bearer {KEYS['boss']}").status == 200


def test_root_and_priority_of_the_tenant_reach_the_worker(gateway: Any, toy: Any) -> None:
    for name, given, sent in (("plain", -100, 0), ("plain", 7, 7), ("boss", -100, -5)):
        list(open_stream(gateway, name, max_tokens=1, priority=given))
        seen = toy.wait_event("request")
        assert (seen["tenant"], seen["priority"]) == (f"tenant/{name}", sent)


def test_calls_side_by_side_keep_their_tenants(gateway: Any, toy: Any) -> None:
    # A prompt of 101 tokens or more is of plain when its length is odd, of boss when it is even.
    lengths = range(101, 125)
    streams = [open_stream(gateway, ("boss", "plain")[n % 2], prompt="x" * n, max_tokens=2) for n in lengths]
    for stream in streams:
        assert len(list(stream)) == 2
    for _ in lengths:
        seen = toy.wait_for(lambda event: event.get("event") == "request" and event["prompt_tokens"] > 100)
        assert seen["tenant"] == f"tenant/{('boss', 'plain')[seen['prompt_tokens'] % 2]}"


def test_requests_beyond_the_rate_hear_when_to_come_again(gateway: Any) -> None:
    for _ in range(2):
        list(open_stream(gateway, "rated", max_tokens=1))
    error = failure(open_stream(gateway, "rated", max_tokens=1))
    assert (error.code(), reason(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    # One per 50 s: less what passed since the second call.
    assert 0 < retry_seconds(error) <= 50
    answer = gateway.http.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 1}, authorization=f"Bearer {KEYS['rated']}")
    assert (answer.status, answer.error["type"], answer.error["code"]) == (
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
    )
    assert 0 < int(answer.headers["retry-after"]) <= 50
    assert metric(gateway, "octavo_gateway_tenant_refused_total", "rated", reason="RATE_LIMITED") == 2
    # Another tenant is not held up.
    list(open_stream(gateway, "plain", max_tokens=1))


def test_calls_at_once_are_counted_and_given_back(gateway: Any, toy: Any) -> None:
    first = open_stream(gateway, "single")
    next(first)
    error = failure(open_stream(gateway, "single", max_tokens=1))
    assert (error.code(), reason(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS")
    assert retry_seconds(error) == 1
    first.cancel()
    toy.wait_event("ended", how="cancelled")
    _until(lambda: metric(gateway, "octavo_gateway_tenant_running_calls", "single") == 0)
    assert len(list(open_stream(gateway, "single", max_tokens=3))) == 3


def _until(true: Any) -> None:
    """Ask until it is so: each time over HTTP, which takes its time."""
    while not true():
        pass


def test_tokens_are_reserved_and_what_was_not_used_returns(gateway: Any) -> None:
    # 40 + 60 tokens take the whole minute's 100, but the prompt's own last token stops the answer after 40.
    options = gateway_pb2.GenerateOptions(max_tokens=60, stop_token_ids=[ord("c") - 33])
    request = gateway_pb2.GenerateRequest(prompt="x" * 39 + "c", options=options)
    *_, last = gateway.stub.Generate(request, timeout=60, metadata=bearer("metered"))
    assert last.usage.completion_tokens == 40
    error = failure(open_stream(gateway, "metered", max_tokens=97))
    assert reason(error) == "TOKENS_LIMITED"
    # 80 of 100 were spent and come back at 100 per 60 s, less what passed since.
    assert 0 < retry_seconds(error) <= 80 * 60 / 100
    never = failure(open_stream(gateway, "metered", max_tokens=98))
    assert (never.code(), reason(never)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert "max_tokens: " in never.details()
    assert metric(gateway, "octavo_gateway_tenant_tokens_total", "metered", kind="prompt") == 40
    assert metric(gateway, "octavo_gateway_tenant_tokens_total", "metered", kind="generated") == 40


def test_prompts_and_answers_longer_than_the_tenants_are_named(gateway: Any) -> None:
    for prompt, tokens, field in (("abcde", 1, "prompt"), ("abc", 7, "options.max_tokens")):
        error = failure(open_stream(gateway, "small", prompt=prompt, max_tokens=tokens))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith(f"{field}: ")
    # Without a number of its own an answer gets what its tenant may have.
    request = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(ignore_eos=True))
    *_, last = gateway.stub.Generate(request, timeout=60, metadata=bearer("small"))
    assert last.usage.completion_tokens == 6


def test_a_flood_does_not_hold_up_a_light_tenant(gateway: Any, toy: Any) -> None:
    with Full(gateway, toy) as full:
        flood = [open_stream(gateway, "plain", prompt="flood") for _ in range(20)]
        _until(lambda: metric(gateway, "octavo_gateway_tenant_waiting_requests", "plain") == 20)
        light = open_stream(gateway, "boss", prompt="light", max_tokens=2)
        _until(lambda: metric(gateway, "octavo_gateway_tenant_waiting_requests", "boss") == 1)
        full.free_one()
        # 20 of the other came before it, and none of them is served before it.
        *_, last = light
        assert last.usage.completion_tokens == 2
        # The toy says 0.25 s of its own queue; what was waited here comes on top.
        assert last.usage.queue_seconds > 0.25
        next(flood[0])
        for stream in flood:
            stream.cancel()
    _until(lambda: metric(gateway, "octavo_gateway_tenant_running_calls", "plain") == 0)
    assert metric(gateway, "octavo_gateway_tenant_waiting_requests", "plain") == 0


def test_who_leaves_the_queue_leaves_no_trace(gateway: Any, toy: Any) -> None:
    """B45: by a cancel, a closed connection or a deadline, a request that waits never reaches the worker."""
    with Full(gateway, toy):
        stream = open_stream(gateway, "boss", prompt="leaves")
        late = open_stream(gateway, "boss", prompt="too late", timeout=0.5)
        body = {"prompt": "over http", "max_tokens": 1}
        connection = gateway.http.open(COMPLETIONS, body, authorization=f"Bearer {KEYS['boss']}")
        _until(lambda: metric(gateway, "octavo_gateway_tenant_waiting_requests", "boss") >= 2)
        stream.cancel()
        connection.close()
        error = failure(late)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        _until(lambda: metric(gateway, "octavo_gateway_tenant_running_calls", "boss") == 0)
        assert metric(gateway, "octavo_gateway_tenant_waiting_requests", "boss") == 0
    # The place is free again, and none of the three ever got to the worker: prompts are known by their lengths.
    list(open_stream(gateway, "boss", prompt="the last of them", max_tokens=1))
    lengths = [toy.wait_event("request")["prompt_tokens"]]
    while lengths[-1] != len("the last of them"):
        lengths.append(toy.wait_event("request")["prompt_tokens"])
    assert not {len("leaves"), len("too late"), len("over http")} & set(lengths)


def test_a_full_queue_is_refused_and_says_when(gateway: Any, toy: Any) -> None:
    with Full(gateway, toy):
        waiting = open_stream(gateway, "short")
        _until(lambda: metric(gateway, "octavo_gateway_tenant_waiting_requests", "short") == 1)
        error = failure(open_stream(gateway, "short"))
        assert (error.code(), reason(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert 1 <= retry_seconds(error) <= 60
        waiting.cancel()


def test_random_ends_leave_nothing_taken(gateway: Any, toy: Any) -> None:
    """60 calls of three tenants on both surfaces, each ended by itself, its client or its deadline, wherever it is."""
    chance = random.Random(6)
    calls: list[Any] = []
    for number in range(60):
        name = chance.choice(["plain", "boss", "short"])
        tokens = chance.choice([1, 5, ENDLESS])
        if number % 3 == 0:
            body = {"prompt": "abc", "max_tokens": tokens, "ignore_eos": True, "stream": True}
            calls.append(gateway.http.open(COMPLETIONS, body, authorization=f"Bearer {KEYS[name]}"))
        else:
            timeout = chance.choice([0.05, 0.3, 60])
            calls.append(open_stream(gateway, name, max_tokens=tokens, timeout=timeout))
        if chance.random() < 0.6:
            _leave(calls.pop(chance.randrange(len(calls))))
    for call in calls:
        _leave(call)
    tenants = ("plain", "boss", "short")
    _until(lambda: not any(metric(gateway, "octavo_gateway_tenant_running_calls", name) for name in tenants))
    assert not any(metric(gateway, "octavo_gateway_tenant_waiting_requests", name) for name in tenants)
    # Both places are free: two can run at once.
    with Full(gateway, toy):
        pass


def _leave(call: Any) -> None:
    """End a call from its client's side; it may have ended before."""
    call.close() if isinstance(call, socket.socket) else call.cancel()


def test_openais_own_client_knows_the_refusals(gateway: Any) -> None:
    base = f"http://{gateway.http.address[0]}:{gateway.http.address[1]}/v1"

    def ask(key: str, **more: Any) -> Any:
        with openai.OpenAI(base_url=base, api_key=key, max_retries=0) as client:
            return client.completions.create(model="bytes", prompt="abc", **more)

    with pytest.raises(openai.AuthenticationError) as unknown:
        ask("nobodys", max_tokens=1)
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.BadRequestError) as long:
        ask(KEYS["small"], max_tokens=7)
    assert long.value.param == "max_tokens"
    under_way = open_stream(gateway, "single")
    next(under_way)
    with pytest.raises(openai.RateLimitError) as limited:
        ask(KEYS["single"], max_tokens=1)
    under_way.cancel()
    assert limited.value.code == "rate_limit_exceeded"
    assert limited.value.response.headers["retry-after"] == "1"
    assert ask(KEYS["plain"], max_tokens=2).usage.completion_tokens == 2


def test_a_file_that_changes_is_read_and_one_that_is_broken_is_not(gateway: Any) -> None:
    request = gateway_pb2.ListModelsRequest()
    broken = tenants_file(ROWS).replace("weight = 1", f'weight = "{KEYS["plain"]}"')
    gateway.tenants.write_text(broken)
    gateway.signal(signal.SIGHUP)
    log = gateway.wait_for(lambda event: event.get("level") == "ERROR")
    assert "the tenants stay as they were" in log["message"]
    assert "tenants.plain.weight" in log["message"]
    assert KEYS["plain"] not in log["message"]
    gateway.stub.ListModels(request, timeout=60, metadata=bearer("plain"))
    gateway.tenants.write_text(tenants_file({name: row for name, row in ROWS.items() if name != "plain"}))
    gateway.wait_for(lambda event: f"{len(ROWS) - 1} tenants read" in str(event.get("message")))
    with pytest.raises(grpc.RpcError) as caught:
        gateway.stub.ListModels(request, timeout=60, metadata=bearer("plain"))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    gateway.stub.ListModels(request, timeout=60, metadata=bearer("boss"))
