"""Prometheus metrics of the gateway, and the page that shows them.

A *call* is one RPC or HTTP request of any kind; a *request* is one prompt on its way through a worker and back. Both
balance at every scrape, since they are counted and read in the event loop:

    started = running + ended, over all codes          of calls
    started = running + finished + failed + cancelled  of requests
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric

from gateway.streams import Finish, FinishReason, Piece
from gateway.token_metrics import TokenMetrics
from service import tracing
from service.errors import ServiceError
from service.listening import cannot_listen

FIRST_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
REQUEST_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)

# Each model has some 140 series; the names come from workers, and a fleet that renames its models must not fill a
# Prometheus server.
MAX_MODELS = 32
OTHER = "other"

PAGE_SECONDS = 10.0

SurfaceName = Literal["grpc", "http"]


class Metrics:
    """The gateway's metrics, in a registry of their own.

    Attributes:
        grpc, http: where the requests of a surface are counted.
    """

    def __init__(self) -> None:
        # When each series began is asked for by nobody, and would double their number.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # its signature has no types
        self.registry = registry = CollectorRegistry()
        self._started = Counter("octavo_gateway_started_calls", "calls that began", ["method"], registry=registry)
        self._calls = Counter(
            "octavo_gateway_calls", "calls that ended, by status", ["method", "code"], registry=registry
        )
        self._running = Gauge("octavo_gateway_running_calls", "calls under way", ["method"], registry=registry)
        self._ready = Gauge("octavo_gateway_ready", "1 while some worker can be used", registry=registry)
        families = _Families(registry)
        self.grpc = SurfaceMetrics(families, "grpc")
        self.http = SurfaceMetrics(families, "http")

    def show_readiness(self, ready: Callable[[], bool]) -> None:
        """Read the readiness from ``ready`` whenever the page is asked for."""
        self._ready.set_function(ready)

    @contextlib.contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Count a call, by the status it ends with."""
        code = "OK"
        running = self._running.labels(method)
        self._started.labels(method).inc()
        running.inc()
        try:
            yield
        except ServiceError as error:
            code = error.code.name
            raise
        except (asyncio.CancelledError, GeneratorExit):
            code = "CANCELLED"
            raise
        except BaseException:
            code = "INTERNAL"
            raise
        finally:
            running.dec()
            self._calls.labels(method, code).inc()

    def serve(self, listen: str) -> str:
        """Serve the page on ``host:port`` from a thread that dies with the process; returns the address in use.

        Called in the event loop that counts: there the numbers are read too, so that they balance.

        Raises:
            OSError: the address cannot be bound.
        """
        host, _, port = listen.rpartition(":")
        source: Any = _InLoop(self.registry, asyncio.get_running_loop())
        try:
            server, _ = prometheus_client.start_http_server(int(port), host.strip("[]"), source)
        except OSError as error:
            raise cannot_listen(listen, error, "--metrics") from error
        return f"{host}:{server.server_port}"


class SurfaceMetrics:
    """Counts the requests of one surface, by model."""

    def __init__(self, families: "_Families", surface: SurfaceName) -> None:
        self._families = families
        self._surface = surface
        self._series: dict[str, _Series] = {}

    @contextlib.contextmanager
    def request(self, model: str, answers: int, arrived: float) -> Iterator["RequestMeter"]:
        """Count a request by how it ends, and time it.

        Args:
            model: its name.
            answers: how many of them make it complete.
            arrived: ``time.monotonic`` when it arrived.
        """
        series = self._of(model)
        meter = RequestMeter(series, arrived)
        series.started.inc()
        series.running.inc()
        outcome = series.failed
        try:
            yield meter
        except (asyncio.CancelledError, GeneratorExit):
            outcome = series.cancelled
            raise
        finally:
            if meter.whole_answers == answers:
                outcome = series.finished
                meter.finished()
            series.running.dec()
            outcome.inc()

    def _of(self, model: str) -> "_Series":
        series = self._series.get(model)
        if series is None:
            series = self._series[model] = _Series(self._families, self._families.label_of(model), self._surface)
        return series


class RequestMeter:
    """Times one request.

    Attributes:
        whole_answers: answers that ended as answers do.
    """

    def __init__(self, series: "_Series", arrived: float) -> None:
        self.whole_answers = 0
        self._series = series
        self._tokens = series.tokens
        self._arrived = arrived
        self._last: dict[int, float] = {}
        self._ended = 0
        # Leads from a bucket to the trace of a request that fell into it, in the format of OpenMetrics.
        trace_id = tracing.current().trace_id
        self._exemplar = {"trace_id": trace_id} if trace_id else None

    def finished(self) -> None:
        """Count the time that the whole took."""
        self._series.request_seconds.observe(time.monotonic() - self._arrived, self._exemplar)

    def see(self, piece: Piece) -> None:
        """Count a piece on its way to the client."""
        tokens = len(piece.token_ids)
        if tokens:
            now = time.monotonic()
            self._tokens.generated += tokens
            last = self._last.get(piece.index)
            if last is not None:
                # What a message brings together came one by one: each token counts with its share of the wait.
                self._tokens.next_token.observe((now - last) / tokens, tokens)
            elif not self._last:
                self._series.first_token.observe(now - self._arrived, self._exemplar)
            self._last[piece.index] = now
        if piece.finish is not None:
            self._see_end(piece.finish)

    def _see_end(self, finish: Finish) -> None:
        series, usage = self._series, finish.usage
        self._ended += 1
        self.whole_answers += finish.reason is not FinishReason.ABORTED
        series.answers[finish.reason].inc()
        series.preemptions.inc(usage.preemptions)
        if self._ended == 1:  # a prompt counts once, however many answers it has
            series.prompt.inc(usage.prompt_tokens)
            series.cached.inc(usage.cached_tokens)
            series.queue.observe(usage.queue_seconds)


class _Families:
    """The metrics with the labels model and surface."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._names: set[str] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"octavo_gateway_{name}", text, ["model", "surface", *labels], registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            labels = ["model", "surface"]
            return Histogram(f"octavo_gateway_{name}_seconds", text, labels, buckets=tuple(buckets), registry=registry)

        self.started = counter("started_requests", "prompts that went to a worker")
        self.ended = counter("requests", "of them, those that ended: finished, failed or cancelled", "outcome")
        self.running = Gauge(
            "octavo_gateway_running_requests", "of them, those under way", ["model", "surface"], registry=registry
        )
        self.answers = counter("answers", "answers that ended, by their finish reason", "reason")
        self.prompt = counter("prompt_tokens", "tokens of prompts whose answer ended")
        self.cached = counter("cached_tokens", "of them, found in the prefix cache")
        self.tokens = TokenMetrics()
        registry.register(self.tokens)
        self.preemptions = counter("preemptions", "times an answer lost its blocks")
        self.first_token = histogram("first_token", "from a request's arrival to its first token", FIRST_TOKEN_BUCKETS)
        self.queue = histogram("queue", "from a request's arrival at the worker to its first step", QUEUE_BUCKETS)
        self.request = histogram("request", "from a request's arrival to its end, of finished ones", REQUEST_BUCKETS)

    def label_of(self, model: str) -> str:
        """The model's name while there are few."""
        if model not in self._names and len(self._names) >= MAX_MODELS:
            return OTHER
        self._names.add(model)
        return model


class _Series:
    """Those of one model and surface; present from its first request on, zeros included."""

    def __init__(self, families: _Families, model: str, surface: SurfaceName) -> None:
        labels = (model, surface)
        self.started = families.started.labels(*labels)
        self.running = families.running.labels(*labels)
        self.finished = families.ended.labels(*labels, "finished")
        self.failed = families.ended.labels(*labels, "failed")
        self.cancelled = families.ended.labels(*labels, "cancelled")
        self.answers = {reason: families.answers.labels(*labels, reason.name.lower()) for reason in FinishReason}
        self.prompt = families.prompt.labels(*labels)
        self.cached = families.cached.labels(*labels)
        self.tokens = families.tokens.of(*labels)
        self.preemptions = families.preemptions.labels(*labels)
        self.first_token = families.first_token.labels(*labels)
        self.queue = families.queue.labels(*labels)
        self.request_seconds = families.request.labels(*labels)


class _InLoop:
    """A registry for another thread, read in the event loop."""

    def __init__(self, registry: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = registry
        self._loop = loop

    def collect(self) -> Iterable[Metric]:
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(PAGE_SECONDS)

    def restricted_registry(self, names: Iterable[str]) -> "_InLoop":
        """Only the metrics asked for, by ``?name[]=``."""
        return _InLoop(self._registry.restricted_registry(names), self._loop)

    async def _read(self) -> list[Metric]:
        return list(self._registry.collect())
