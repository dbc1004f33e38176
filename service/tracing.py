"""Traces by OpenTelemetry, off unless asked for.

    set_up("gateway", wanted=True)        reads the standard OTEL_* variables; needs octavo[otel]
    span = current().child("queue")       a part of the request at hand
    span.set("octavo.worker", address)
    span.end()

While tracing is off every span is ``OFF``, which does nothing and has only itself for children, so that callers ask no
questions. Times are those of ``time.monotonic``. The context of a trace travels as the W3C's ``traceparent`` in HTTP
headers and gRPC metadata.
"""

import contextvars
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

INSTALL = "pip install 'octavo[otel]'"

# A collector that does not answer must not hold up a drain that is over.
FLUSH_SECONDS = 2.0

_EXPORTERS = "opentelemetry_traces_exporter"
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}

Value = str | bool | int | float | Sequence[str] | Sequence[int]
Kind = Literal["INTERNAL", "SERVER", "CLIENT"]


class TracingError(Exception):
    """Tracing was asked for and cannot be had; the message says what is missing."""


class Span:
    """A part of a request; this one records nothing.

    Attributes:
        recording: whether what is told to it is kept. Ask before making what only a span needs.
    """

    recording = False

    def set(self, key: str, value: Value) -> None:
        """Set an attribute; the last value stays."""

    def add(self, key: str, number: int) -> None:
        """Add to an attribute that counts."""

    def append(self, key: str, value: str) -> None:
        """Add to an attribute that lists."""

    def event(self, name: str, at: float | None = None, **attributes: Value) -> None:
        """Something that happened at a moment, now unless ``at`` is given."""

    def fail(self, error_type: str, message: str = "", *, fault: bool = True) -> None:
        """Say why it did not succeed; ``fault`` makes it an error, which the caller's own mistakes are not.

        Said again without a message, the first message stays. A message never repeats what the caller wrote.
        """

    def child(self, name: str, kind: Kind = "INTERNAL", start: float | None = None) -> "Span":
        """A part of this part, from now on unless ``start`` is given."""
        return self

    def headers(self) -> tuple[tuple[str, str], ...] | None:
        """What carries the context to the next service, as gRPC metadata."""
        return None

    @property
    def trace_id(self) -> str:
        """32 hex digits, empty for a span that is not recorded."""
        return ""

    def end(self, at: float | None = None) -> None:
        """It is over, now unless ``at`` is given; what is told afterwards is lost."""


OFF = Span()

_at_hand: contextvars.ContextVar[Span] = contextvars.ContextVar("span", default=OFF)
_tracer: "Tracer | None" = None
_provider: "TracerProvider | None" = None
_exporter: "SpanExporter | None" = None


def current() -> Span:
    """The span of the request that this task serves, ``OFF`` outside of requests."""
    return _at_hand.get()


def enter(span: Span) -> None:
    """Let this task, and all tasks that it begins, serve the request of a span."""
    _at_hand.set(span)


def enabled() -> bool:
    """Whether tracing is on."""
    return _tracer is not None


def server_span(name: str, carrier: Mapping[str, str]) -> Span:
    """The span of a request that has come in.

    Args:
        name: of low cardinality, such as a method.
        carrier: headers by their lower-case names; ``traceparent`` among them makes it a part of the caller's trace.
    """
    if _tracer is None:
        return OFF
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract(carrier)
    return _Recorded(_tracer, name, "SERVER", context, None)


def set_up(service: str, *, wanted: bool) -> None:
    """Switch tracing on for this process, if it is wanted.

    ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``,
    ``OTEL_BSP_*``, ``OTEL_SDK_DISABLED`` and the others mean what OpenTelemetry says; ``OTEL_TRACES_EXPORTER`` names
    any exporter that is installed.

    Raises:
        TracingError: a package is missing, or a variable names something that is not there.
    """
    global _tracer, _provider, _exporter
    if not wanted:
        return
    from importlib.metadata import version

    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise TracingError(f"tracing needs OpenTelemetry ({error}): {INSTALL}") from error
    own = Resource({"service.version": version("octavo"), "service.instance.id": os.urandom(8).hex()})
    try:
        resource = own.merge(Resource.create())  # what the variables say wins
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: f"octavo-{service}"}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        _exporter = _chosen_exporter()
        if _exporter is not None:
            provider.add_span_processor(BatchSpanProcessor(_exporter))
    except ValueError as error:
        raise TracingError(f"tracing cannot be set up: {error}") from error
    _provider, _tracer = provider, provider.get_tracer("octavo", version("octavo"))
    logger.info("tracing is on: %s", "no exporter" if _exporter is None else type(_exporter).__module__)


def shut_down() -> None:
    """Send what is left, for a moment, and switch tracing off. Blocks; called when the last request has ended."""
    global _tracer, _provider, _exporter
    provider, exporter = _provider, _exporter
    _tracer = _provider = _exporter = None
    if provider is None:
        return
    flushing = threading.Thread(target=provider.shutdown, daemon=True)
    flushing.start()
    flushing.join(FLUSH_SECONDS)
    if flushing.is_alive() and exporter is not None:
        logger.warning("the last spans were not taken within %g s", FLUSH_SECONDS)
        exporter.shutdown()  # ends the call, and with it the thread
        flushing.join(FLUSH_SECONDS)


def _chosen_exporter() -> "SpanExporter | None":
    """The exporter that the variables name; None for none."""
    from importlib.metadata import entry_points

    name = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if name == "none":
        return None
    if name == "otlp":
        protocol = (
            os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            or "grpc"
        )
        name = _PROTOCOLS.get(protocol, protocol)
    for found in entry_points(group=_EXPORTERS, name=name):
        exporter: SpanExporter = found.load()()
        return exporter
    raise TracingError(f"no exporter {name!r} is installed; with {INSTALL} comes {_PROTOCOLS['grpc']}")


class _Recorded(Span):
    """A span that OpenTelemetry keeps, unless its sampler drops it."""

    def __init__(self, tracer: "Tracer", name: str, kind: Kind, context: Any, start: float | None) -> None:
        from opentelemetry.trace import SpanKind

        self._tracer = tracer
        self._span = tracer.start_span(name, context, kind=SpanKind[kind], start_time=_nanoseconds(start))
        self._faulty = False
        self._counts: dict[str, int] = {}
        self._lists: dict[str, list[str]] = {}

    @property
    def recording(self) -> bool:  # type: ignore[override]  # a constant of the class that records nothing
        return self._span.is_recording()

    def set(self, key: str, value: Value) -> None:
        self._span.set_attribute(key, value)

    def add(self, key: str, number: int) -> None:
        total = self._counts[key] = self._counts.get(key, 0) + number
        self._span.set_attribute(key, total)

    def append(self, key: str, value: str) -> None:
        listed = self._lists.setdefault(key, [])
        listed.append(value)
        self._span.set_attribute(key, listed)

    def event(self, name: str, at: float | None = None, **attributes: Value) -> None:
        self._span.add_event(name, attributes, _nanoseconds(at))

    def fail(self, error_type: str, message: str = "", *, fault: bool = True) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", error_type)
        if fault and (message or not self._faulty):
            self._faulty = True
            self._span.set_status(StatusCode.ERROR, message or None)

    def child(self, name: str, kind: Kind = "INTERNAL", start: float | None = None) -> Span:
        return _Recorded(self._tracer, name, kind, self._context(), start)

    def headers(self) -> tuple[tuple[str, str], ...]:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, self._context())
        return tuple(carrier.items())

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}" if self.recording else ""

    def end(self, at: float | None = None) -> None:
        self._span.end(_nanoseconds(at))

    def _context(self) -> Any:
        from opentelemetry.trace import set_span_in_context

        return set_span_in_context(self._span)


def _nanoseconds(at: float | None) -> int | None:
    """A moment of the monotonic clock by the calendar's."""
    return None if at is None else time.time_ns() - int((time.monotonic() - at) * 1e9)
