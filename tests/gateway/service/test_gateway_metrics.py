"""What the gateway counts, balances over every way that a request can end; what it times, falls into the buckets."""

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gateway import metrics
from gateway.metrics import Metrics
from gateway.streams import Finish, FinishReason, Piece, Usage
from octavo.gateway.v1 import gateway_pb2
from service import tracing

Labels = tuple[tuple[str, str], ...]
ENDLESS = 1_000_000


class Page:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._samples: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value

    def of(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name with these labels among theirs."""
        wanted = set(labels.items())
        return sum(value for (found, given), value in self._samples.items() if found == name and wanted <= set(given))

    def assert_balance(self) -> None:
        for surface in ("grpc", "http"):
            started = self.of("octavo_gateway_started_requests_total", surface=surface)
            ended = self.of("octavo_gateway_requests_total", surface=surface)
            assert started == ended + self.of("octavo_gateway_running_requests", surface=surface)
        running = self.of("octavo_gateway_running_calls")
        assert self.of("octavo_gateway_started_calls_total") == running + self.of("octavo_gateway_calls_total")


def shown(metrics: Metrics) -> Page:
    return Page(generate_latest(metrics.registry).decode())


def piece(tokens: int = 1, index: int = 0, reason: FinishReason | None = None, **usage: Any) -> Piece:
    counted = Usage(**{"prompt_tokens": 8, "completion_tokens": 3, **usage})
    finish = None if reason is None else Finish(reason, "", counted)
    return Piece(index, "x" * tokens, tuple(range(tokens)), finish)


@pytest.fixture
def page_of(start_worker: Any, start_gateway: Any) -> Iterator[Any]:
    worker = start_worker("--token-seconds", "0.002", "--max-context", "2000000")
    gateway = start_gateway(worker.address, "--metrics", "127.0.0.1:0")
    ready = gateway.wait_event("ready")
    gateway.http = f"http://{ready['http']}"

    def page(address: str = f"http://{ready['metrics']}") -> Page:
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as response:
            return Page(response.read().decode())

    gateway.page = page
    return gateway


def post(gateway: Any, **body: Any) -> int:
    request = urllib.request.Request(
        f"{gateway.http}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def stream(gateway: Any, prompt: str, max_tokens: int, **options: Any) -> Any:
    wanted = gateway_pb2.GenerateOptions(max_tokens=max_tokens, **options)
    return gateway.stub.Generate(gateway_pb2.GenerateRequest(prompt=prompt, options=wanted), timeout=60)


@pytest.mark.e2e
def test_what_started_has_ended_or_runs_whatever_happened(page_of: Any) -> None:
    gateway = page_of
    # Three finish over gRPC: by length, by a stop string, with two answers.
    assert list(stream(gateway, "abc", 4))
    assert list(stream(gateway, "abc", ENDLESS, stop=["b"]))
    assert list(stream(gateway, "abc", 4, n=2))
    # Two fail: the worker refuses, the worker ends early. One never starts: it is refused here.
    for prompt, code in (
        ("FULL", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("BREAK", grpc.StatusCode.INTERNAL),
        ("", grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(gateway, prompt, 9))
        assert caught.value.code() is code
    # Two are cancelled, one runs on.
    for _ in range(2):
        left = stream(gateway, "gone", ENDLESS, ignore_eos=True)
        next(left)
        left.cancel()
    running = stream(gateway, "stay", ENDLESS, ignore_eos=True)
    next(running)
    # Over HTTP: one request of two prompts finishes, one fails, one is refused before it starts.
    assert post(gateway, prompt=["ab", "cd"], max_tokens=3) == 200
    assert post(gateway, prompt="FULL", max_tokens=3) == 429
    assert post(gateway, prompt="x", max_tokens=0) == 400
    # What a client heard last comes a moment before it is counted, and nobody tells one who left.
    deadline = time.monotonic() + 60
    while gateway.page().of("octavo_gateway_running_calls") != 1:
        assert time.monotonic() < deadline

    for page in (gateway.page(), gateway.page(gateway.http)):
        page.assert_balance()
        ends = {
            (surface, outcome): page.of(
                "octavo_gateway_requests_total", surface=surface, outcome=outcome, model="bytes"
            )
            for surface in ("grpc", "http")
            for outcome in ("finished", "failed", "cancelled")
        }
        assert ends == {
            ("grpc", "finished"): 3,
            ("grpc", "failed"): 2,
            ("grpc", "cancelled"): 2,
            ("http", "finished"): 2,
            ("http", "failed"): 1,
            ("http", "cancelled"): 0,
        }
        assert page.of("octavo_gateway_running_requests", surface="grpc") == 1
        # Calls beside: nine over gRPC, of which one was refused; three over HTTP.
        assert page.of("octavo_gateway_started_calls_total", method="Generate") == 9
        assert page.of("octavo_gateway_started_calls_total", method="/v1/completions") == 3
        # Each histogram counts what it says: 3 + 2 finished requests, and every request's first token.
        assert page.of("octavo_gateway_request_seconds_count") == 5
        assert page.of("octavo_gateway_first_token_seconds_count", surface="http") == 3
        # Two answers of three tokens: 2 x 2 next ones.
        assert page.of("octavo_gateway_next_token_seconds_count", surface="http") == 4
    running.cancel()


@pytest.mark.e2e
def test_the_page_of_its_own_port_shows_one_metric_when_asked(page_of: Any) -> None:
    address = f"{page_of.seen[-1]['metrics']}"
    with urllib.request.urlopen(f"http://{address}/metrics?name[]=octavo_gateway_ready", timeout=60) as response:
        lines = [line for line in response.read().decode().splitlines() if not line.startswith("#")]
    assert lines == ["octavo_gateway_ready 1.0"]


@pytest.mark.unit
def test_a_message_with_several_tokens_counts_each_with_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    counted = Metrics()
    with counted.grpc.request("m", 1, arrived=99.5) as meter:
        meter.see(piece())  # the first token, 0.5 s after the arrival
        now = 100.4
        meter.see(piece(tokens=4))  # four in 0.4 s: 0.1 s each
        meter.see(piece(tokens=0, reason=FinishReason.LENGTH, queue_seconds=0.2, cached_tokens=4, preemptions=2))
    page = shown(counted)
    assert page.of("octavo_gateway_first_token_seconds_sum", model="m") == pytest.approx(0.5)
    assert page.of("octavo_gateway_next_token_seconds_count") == 4
    assert page.of("octavo_gateway_next_token_seconds_sum") == pytest.approx(0.4)
    assert page.of("octavo_gateway_next_token_seconds_bucket", le="0.08") == 0
    assert page.of("octavo_gateway_next_token_seconds_bucket", le="0.16") == 4
    assert page.of("octavo_gateway_queue_seconds_sum") == pytest.approx(0.2)
    assert page.of("octavo_gateway_request_seconds_sum") == pytest.approx(0.9)
    assert page.of("octavo_gateway_cached_tokens_total") == 4
    assert page.of("octavo_gateway_preemptions_total") == 2
    assert page.of("octavo_gateway_answers_total", reason="length") == 1


@pytest.mark.unit
def test_what_is_counted_with_every_token_can_be_asked_for_alone() -> None:
    counted = Metrics()
    # Models whose names share a label share their counts.
    first, second = (counted.grpc.request(f"model-{number}", 1, 0.0) for number in range(2))
    with pytest.MonkeyPatch.context() as patch, first as one:
        patch.setattr(metrics, "MAX_MODELS", 0)
        with second as other, counted.grpc.request("model-2", 1, 0.0) as third:
            for meter in (one, other, third):
                meter.see(piece(tokens=2))
    page = shown(counted)
    assert page.of("octavo_gateway_generated_tokens_total", model="model-0") == 2
    assert page.of("octavo_gateway_generated_tokens_total", model=metrics.OTHER) == 4
    for name in ("octavo_gateway_generated_tokens_total", "octavo_gateway_next_token_seconds_count"):
        (family,) = counted.registry.restricted_registry([name]).collect()
        assert name.startswith(family.name)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("reasons", "raised", "outcome"),
    [
        ([FinishReason.STOP], None, "finished"),
        ([FinishReason.STOP, FinishReason.LENGTH], None, "finished"),
        ([FinishReason.STOP], GeneratorExit(), "finished"),  # its client left behind the last piece
        ([FinishReason.ABORTED], None, "failed"),
        ([], ValueError(), "failed"),
        ([], asyncio.CancelledError(), "cancelled"),
        ([], GeneratorExit(), "cancelled"),
    ],
)
def test_an_outcome_is_what_the_client_has_seen(
    reasons: list[FinishReason], raised: BaseException | None, outcome: str
) -> None:
    counted = Metrics()
    with contextlib.suppress(BaseException), counted.http.request("m", max(1, len(reasons)), 0.0) as meter:
        for index, reason in enumerate(reasons):
            meter.see(piece(index=index, reason=reason))
        if raised is not None:
            raise raised
    page = shown(counted)
    page.assert_balance()
    assert page.of("octavo_gateway_requests_total", outcome=outcome) == 1
    assert page.of("octavo_gateway_requests_total") == 1
    # A prompt counts once, however many answers it has.
    assert page.of("octavo_gateway_prompt_tokens_total") == (8 if reasons else 0)


@pytest.mark.unit
def test_names_of_models_fill_no_scraper() -> None:
    counted = Metrics()
    for number in range(metrics.MAX_MODELS + 5):
        for surface in (counted.grpc, counted.http):
            with surface.request(f"model-{number}", 1, 0.0):
                pass
    page = shown(counted)
    assert page.of("octavo_gateway_requests_total", model=f"model-{metrics.MAX_MODELS - 1}") == 2
    assert page.of("octavo_gateway_requests_total", model=metrics.OTHER) == 10
    page.assert_balance()


@pytest.mark.unit
def test_a_traced_request_leads_from_its_bucket_to_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    tracing.set_up("gateway", wanted=True)
    counted = Metrics()
    try:
        tracing.enter(span := tracing.server_span("call", {}))
        with counted.grpc.request("m", 1, arrived=0.0) as meter:
            meter.see(piece(reason=FinishReason.STOP))
    finally:
        tracing.enter(tracing.OFF)
        tracing.shut_down()
    shown = openmetrics.generate_latest(counted.registry).decode()
    for name in ("first_token", "request"):
        lines = [line for line in shown.splitlines() if line.startswith(f"octavo_gateway_{name}_seconds_bucket")]
        assert [f'# {{trace_id="{span.trace_id}"}}' in line for line in lines].count(True) == 1
