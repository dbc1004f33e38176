"""Spans of the calls that a gRPC server serves: an interceptor, installed only where tracing is on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import grpc
import grpc.aio

from service import tracing

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

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]]


def interceptors(methods: Collection[str]) -> list[grpc.aio.ServerInterceptor]:
    """For ``Server``: one that traces these methods, none while tracing is off.

    Args:
        methods: ``package.Service/Method``, with one request each. What is asked every second, and streams that never
            end, would only bury the rest.
    """
    return [_Tracing(methods)] if tracing.enabled() else []


def describe(span: tracing.Span, method: str) -> None:
    """The attributes that a call has at both of its ends."""
    span.set("rpc.system.name", "grpc")
    span.set("rpc.method", method)


class _Tracing(grpc.aio.ServerInterceptor):
    def __init__(self, methods: Collection[str]) -> None:
        self._methods = frozenset(methods)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method.lstrip("/")
        if handler is None or method not in self._methods:
            return handler  # type: ignore[no-any-return]
        if handler.response_streaming:
            make, behaviour = grpc.unary_stream_rpc_method_handler, _traced_stream(handler.unary_stream, method)
        else:
            make, behaviour = grpc.unary_unary_rpc_method_handler, _traced_unary(handler.unary_unary, method)
        return make(
            behaviour,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _traced_unary(behaviour: Callable[[Any, Any], Any], method: str) -> Callable[[Any, Any], Any]:
    async def call(request: Any, context: Any) -> Any:
        with _span(method, context):
            return await behaviour(request, context)

    return call


def _traced_stream(behaviour: Callable[[Any, Any], Any], method: str) -> Callable[[Any, Any], Any]:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        with _span(method, context):
            async with contextlib.aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

    return call


@contextlib.contextmanager
def _span(method: str, context: Any) -> Any:
    carrier = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    span = tracing.server_span(method, carrier)
    describe(span, method)
    # Each call has a task of its own, so nobody else sees it.
    tracing.enter(span)
    code = grpc.StatusCode.OK
    try:
        yield
        code = _BY_NUMBER.get(context.code() or 0, grpc.StatusCode.UNKNOWN)
    except (asyncio.CancelledError, GeneratorExit):
        code = grpc.StatusCode.CANCELLED
        raise
    except BaseException:
        code = _BY_NUMBER.get(context.code(), grpc.StatusCode.UNKNOWN)
        raise
    finally:
        span.set("rpc.response.status_code", code.name)
        if code is not grpc.StatusCode.OK:
            span.fail(code.name, context.details() or "", fault=code in FAULTS)
        span.end()
