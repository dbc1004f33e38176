"""Spans of the calls that a gRPC server serves: an interceptor, installed only where tracing is on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import grpc
import grpc.aio

from service import request_ids, tracing
from service.handlers import Behaviour, Continuation, behaving

# What OpenTelemetry calls a server's fault; the other codes are its caller's doing, or nobody's.
FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}

Attributes = Mapping[str, tracing.Value]
Methods = Mapping[str, Attributes]


def interceptors(methods: Methods) -> list[grpc.aio.ServerInterceptor]:
    """For ``Server``: one that traces these methods, none while tracing is off.

    Args:
        methods: ``package.Service/Method``, each with what is known of all its calls; they take one request. What is
            asked every second, and streams that never end, would only bury the rest.
    """
    return [_Tracing(methods)] if tracing.enabled() else []


def describe(span: tracing.Span, method: str) -> None:
    """The attributes that a call has at both of its ends."""
    span.set("rpc.system.name", "grpc")
    span.set("rpc.method", method)


class _Tracing(grpc.aio.ServerInterceptor):
    def __init__(self, methods: Methods) -> None:
        self._methods = methods

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method.lstrip("/")
        if handler is None or method not in self._methods:
            return handler  # type: ignore[no-any-return]
        wrap = _traced_stream if handler.response_streaming else _traced_unary
        return behaving(handler, lambda behaviour: wrap(behaviour, method, self._methods[method]))


def _traced_unary(behaviour: Behaviour, method: str, attributes: Attributes) -> Behaviour:
    async def call(request: Any, context: Any) -> Any:
        with _span(method, attributes, context):
            return await behaviour(request, context)

    return call


def _traced_stream(behaviour: Behaviour, method: str, attributes: Attributes) -> Behaviour:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        with _span(method, attributes, context):
            async with contextlib.aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

    return call


@contextlib.contextmanager
def _span(method: str, attributes: Attributes, context: Any) -> Iterator[None]:
    carrier = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    span = tracing.server_span(method, carrier)
    describe(span, method)
    for key, value in attributes.items():
        span.set(key, value)
    # Each call has a task of its own, so nobody else sees it.
    tracing.enter(span)
    code = grpc.StatusCode.OK
    try:
        yield
        code = _code_of(context, grpc.StatusCode.OK)
    except (asyncio.CancelledError, GeneratorExit):
        code = grpc.StatusCode.CANCELLED
        raise
    except BaseException:
        code = _code_of(context, grpc.StatusCode.UNKNOWN)
        raise
    finally:
        span.set("rpc.response.status_code", code.name)
        if name := request_ids.current():
            span.set("octavo.request_id", name)
        if code is not grpc.StatusCode.OK:
            # Without the details, which may repeat what the caller wrote.
            span.fail(code.name, fault=code in FAULTS)
        span.end()


def _code_of(context: Any, unless_set: grpc.StatusCode) -> grpc.StatusCode:
    """What a servicer has set, as a code or as its number."""
    code = context.code()
    return code if isinstance(code, grpc.StatusCode) else _BY_NUMBER.get(code or unless_set.value[0], unless_set)
