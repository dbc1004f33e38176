"""Tracing that is off costs nothing, and one that cannot work says so; test_traces.py sees it at work."""

import hashlib
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway import spans
from octavo.gateway.v1 import gateway_pb2
from service import traced_calls, tracing
from service.tracing import OFF, TracingError

KEY = "a-key-of-this-test-0123456789"


@pytest.fixture
def switched_off() -> Iterator[None]:
    yield
    tracing.shut_down()


@pytest.mark.unit
def test_off_there_is_nothing_to_pay() -> None:
    assert tracing.current() is OFF
    assert OFF.child("part", "CLIENT") is OFF
    assert OFF.headers() is None
    assert tracing.server_span("any", {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}) is OFF
    assert traced_calls.interceptors(spans.GRPC) == []

    def request() -> None:
        """What a request does at the gateway on its way to a worker and back."""
        span = tracing.current().child("call", "CLIENT")
        traced_calls.describe(span, "method")
        span.set("server.address", "host:1")
        span.headers()
        tracing.current()
        span.end()

    number = 20_000
    seconds = min(timeit.repeat(request, number=number, repeat=5, timer=time.process_time)) / number
    print(f"\n{seconds * 1e6:.2f} us per request while tracing is off")
    # The gateway may take 150 us per token.
    assert seconds < 15e-6


@pytest.mark.unit
def test_off_nothing_of_opentelemetry_is_imported() -> None:
    found = "[name for name in sys.modules if name.startswith('opentelemetry')]"
    for module in ("gateway.app", "kv_manager.servicer"):
        code = f"import sys, {module}; print({found})"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout == "[]\n"


@pytest.mark.unit
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
        with pytest.raises(TracingError, match=r"octavo\[otel\]"):
            tracing.set_up("gateway", wanted=True)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nobody")
    with pytest.raises(TracingError, match="'nobody'"):
        tracing.set_up("gateway", wanted=True)
    assert not tracing.enabled()


@pytest.mark.unit
def test_the_variables_win_over_what_the_service_says(monkeypatch: pytest.MonkeyPatch, switched_off: None) -> None:
    from opentelemetry.sdk.trace import ReadableSpan

    for variable, expected in (
        (None, "octavo-gateway"),
        ("OTEL_SERVICE_NAME", "mine"),
        ("OTEL_RESOURCE_ATTRIBUTES", "mine"),
    ):
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        with monkeypatch.context() as patch:
            if variable is not None:
                patch.setenv(variable, "mine" if variable == "OTEL_SERVICE_NAME" else "service.name=mine")
            tracing.set_up("gateway", wanted=True)
        span: Any = tracing.server_span("call", {})
        assert isinstance(span._span, ReadableSpan)
        assert span._span.resource.attributes["service.name"] == expected
        tracing.shut_down()


@pytest.mark.unit
def test_a_malformed_traceparent_begins_a_trace_of_its_own(monkeypatch: pytest.MonkeyPatch, switched_off: None) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    tracing.set_up("gateway", wanted=True)
    seen = set()
    for given in (
        "",
        "00-0-0-01",
        "ff-" + "1" * 32 + "-" + "2" * 16 + "-01",
        "00-" + "0" * 32 + "-" + "2" * 16 + "-01",
    ):
        span = tracing.server_span("call", {"traceparent": given})
        assert span.recording
        seen.add(span.trace_id)
    assert len(seen) == 4
    assert "1" * 32 not in seen


@pytest.mark.e2e
def test_a_collector_out_of_reach_holds_nobody_up(
    start_worker: Any, start_gateway: Any, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port}")
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(f'[tenants.one]\nkeys = ["{hashlib.sha256(KEY.encode()).hexdigest()}"]\n')
    gateway = start_gateway(start_worker().address, "--tracing", "true", "--tenants", str(tenants))
    gateway.wait_event("ready")
    request = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(max_tokens=3))
    for _ in range(20):
        assert list(gateway.stub.Generate(request, metadata=[("authorization", f"Bearer {KEY}")], timeout=60))
    # Traced too, although an interceptor refuses it that takes it for a stream of requests.
    with pytest.raises(grpc.RpcError) as caught:
        list(gateway.stub.Generate(request, timeout=60))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    begun = time.monotonic()
    gateway.process.terminate()
    assert gateway.process.wait(60) == 0
    # The drain's notice of 0.2 s, and 2 s for the spans, twice at most; the rest is for a slow machine.
    assert time.monotonic() - begun < 30
