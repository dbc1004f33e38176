"""The operators' surface of a real gateway: who may use it, what it shows, and a drain that cuts nothing off."""

import hashlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from gateway_http import Http
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.gateway.v1 import gateway_pb2, operator_pb2, operator_pb2_grpc
from service.errors import error_info_of

pytestmark = pytest.mark.e2e

ENDLESS = 1_000_000
KEYS = {"boss": "boss-key-0123456789", "plain": "plain-key-0123456789"}
ROWS = {"boss": "operator = true", "plain": "tokens_per_minute = 6000\nconcurrent_requests = 3\nmax_tokens = 1000000"}

CALLS: dict[str, Message] = {
    "ListWorkers": operator_pb2.ListWorkersRequest(),
    "ListTenants": operator_pb2.ListTenantsRequest(),
    "Drain": operator_pb2.DrainRequest(),
}


def operate(gateway: Any, method: str, key: str = "") -> Any:
    metadata = [("authorization", f"Bearer {KEYS[key]}")] if key else None
    stub = operator_pb2_grpc.OperatorServiceStub(gateway.channel)
    return getattr(stub, method)(CALLS[method], timeout=60, metadata=metadata)


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    info = error_info_of(caught.value)
    assert info is not None
    return caught.value.code(), info.reason


def generate(gateway: Any, key: str, prompt: str = "abc", max_tokens: int = 4) -> Any:
    options = gateway_pb2.GenerateOptions(max_tokens=max_tokens, ignore_eos=True)
    request = gateway_pb2.GenerateRequest(prompt=prompt, options=options)
    return gateway.stub.Generate(request, timeout=60, metadata=[("authorization", f"Bearer {KEYS[key]}")])


@pytest.fixture
def gateway(start_worker: Any, start_gateway: Any, tmp_path: Path) -> Iterator[Any]:
    worker = start_worker("--token-seconds", "0.01")
    rows = [
        f'[tenants.{name}]\nkeys = ["{hashlib.sha256(KEYS[name].encode()).hexdigest()}"]\n{row}'
        for name, row in ROWS.items()
    ]
    path = tmp_path / "tenants.toml"
    path.write_text("\n".join(rows))
    started = start_gateway(worker.address, "--tenants", str(path))
    started.worker = worker
    started.http = Http(started.wait_event("ready")["http"])
    return started


def test_what_operators_see(gateway: Any) -> None:
    for method in CALLS:
        assert refusal(lambda method=method: operate(gateway, method)) == (
            grpc.StatusCode.UNAUTHENTICATED, "MISSING_API_KEY"
        )  # fmt: skip
        assert refusal(lambda method=method: operate(gateway, method, "plain")) == (
            grpc.StatusCode.PERMISSION_DENIED, "OPERATORS_ONLY"
        )  # fmt: skip
    list(generate(gateway, "plain"))
    stream = generate(gateway, "plain", max_tokens=2000)
    next(stream)
    try:
        (worker,) = operate(gateway, "ListWorkers", "boss").workers
        boss, plain = operate(gateway, "ListTenants", "boss").tenants
    finally:
        stream.cancel()
    assert (worker.address, worker.model, worker.trouble) == (gateway.worker.address, "bytes", "")
    # One sample, whose prompt is computed: of its 2,000 tokens routing weighs 128.
    assert (worker.samples, worker.load_tokens, worker.left_out) == (1, 128, False)
    assert (boss.tenant, boss.operator, boss.HasField("tokens_per_minute")) == ("boss", True, False)
    assert (plain.tenant, plain.operator, plain.running_calls, plain.calls) == ("plain", False, 1, 2)
    # The first: 3 tokens of the prompt, 4 generated. The second is charged at its end, and reserved 3 + 2,000.
    assert (plain.prompt_tokens, plain.generated_tokens) == (3, 4)
    assert (plain.tokens_per_minute, plain.concurrent_requests) == (6000, 3)
    # It fills by 100 a second.
    assert 6000 - 7 - 2003 <= plain.tokens_left < 6000


def test_a_drain_refuses_what_is_new_and_cuts_nothing_off(gateway: Any) -> None:
    # Of 10 ms each: five seconds.
    stream = generate(gateway, "plain", max_tokens=500)
    next(stream)
    assert operate(gateway, "Drain", "boss").running_calls == 1
    gateway.wait_health(serving=False)
    assert gateway.http.get("/health").status == 503
    assert gateway.http.get("/livez").status == 200
    assert refusal(lambda: list(generate(gateway, "plain"))) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    body = {"prompt": "abc", "max_tokens": 4}
    over_http = gateway.http.post("/v1/completions", body, authorization=f"Bearer {KEYS['plain']}")
    assert over_http.status == 503
    assert json.loads(over_http.body)["error"]["code"] == "shutting_down"
    assert len(list(stream)) == 499
    assert operate(gateway, "Drain", "boss").running_calls == 0
    # A worker that comes back meanwhile does not make it ready again; only its end makes room for the next one.
    for said in ("cannot be used", "is ready"):
        gateway.worker.signal(signal.SIGUSR1)
        gateway.wait_for(lambda event, said=said: f"worker {gateway.worker.address} {said}" in event.get("message", ""))
    health = health_pb2_grpc.HealthStub(gateway.channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
    gateway.signal(signal.SIGTERM)
    assert gateway.process.wait(60) == 0


def test_without_tenants_anybody_may_look_and_nobody_may_drain(start_worker: Any, start_gateway: Any) -> None:
    worker = start_worker()
    gateway = start_gateway(worker.address)
    gateway.wait_event("ready")
    assert [one.address for one in operate(gateway, "ListWorkers").workers] == [worker.address]
    assert [one.tenant for one in operate(gateway, "ListTenants").tenants] == ["anonymous"]
    assert refusal(lambda: operate(gateway, "Drain")) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_OPERATOR")
    gateway.wait_health(serving=True)
