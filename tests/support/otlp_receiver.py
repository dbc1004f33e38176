"""A collector for tests: a real OTLP receiver over gRPC that keeps the spans it is sent."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

PATIENCE_SECONDS = 120.0


class Received(NamedTuple):
    """A span as it came."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]]
    is_error: bool


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what comes, and lets tests wait for it."""

    def __init__(self) -> None:
        self.address = ""
        self._spans: list[Received] = []
        self._news = threading.Condition()

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        came = [
            _received(resource.resource, span)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._news:
            self._spans += came
            self._news.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Received]:
        """All that came so far."""
        with self._news:
            return list(self._spans)

    def trace(self, trace_id: str, *names: str) -> list[Received]:
        """The spans of a trace, once every name is among them as often as it is given."""

        def complete() -> bool:
            found = [span.name for span in self._spans if span.trace_id == trace_id]
            return all(found.count(name) >= names.count(name) for name in names)

        with self._news:
            assert self._news.wait_for(complete, PATIENCE_SECONDS), [(one.trace_id, one.name) for one in self._spans]
            return [span for span in self._spans if span.trace_id == trace_id]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(0).wait()


def _received(resource: Any, span: Any) -> Received:
    return Received(
        service=_values(resource.attributes)["service.name"],
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        events=[(event.name, event.time_unix_nano, _values(event.attributes)) for event in span.events],
        is_error=span.status.code == 2,
    )


_READ: dict[str, Callable[[Any], Any]] = {
    "string_value": str,
    "bool_value": bool,
    "int_value": int,
    "double_value": float,
    "array_value": lambda array: [_value(one) for one in array.values],
}


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return _READ[kind](getattr(value, kind))
