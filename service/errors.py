"""Domain errors, and the one seam where they become gRPC status codes.

A service raises ``ServiceError`` (or lets a library error through); ``ErrorInterceptor`` turns it into a canonical code
with ``google.rpc`` details: ``ErrorInfo`` always, ``BadRequest`` for named fields, ``RetryInfo`` when waiting helps,
``RequestInfo`` for a request that has a name.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from service import request_ids, trailers
from service.handlers import Behaviour, Continuation, behaving

DOMAIN = "octavo"
DETAILS_KEY = "grpc-status-details-bin"
# How long gRPC's own retries wait, by the client's service config, in place of their backoff.
PUSHBACK_KEY = "grpc-retry-pushback-ms"

Seam = Callable[[Any, str], contextlib.AbstractAsyncContextManager[None]]
"""(context, method) -> what a call of it runs in."""

logger = logging.getLogger(__name__)


class ServiceError(Exception):
    """An error with a canonical code.

    Args:
        code: the gRPC status code.
        message: one line for people.
        reason: an UPPER_SNAKE word for programs (``ErrorInfo.reason``).
        fields: what was wrong with which field of the request (``BadRequest``).
        metadata: facts for programs, such as the expected step (``ErrorInfo.metadata``).
        retry_seconds: when trying again makes sense (``RetryInfo``, and the trailer that gRPC's own retries heed).
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str,
        fields: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.fields = dict(fields or {})
        self.metadata = dict(metadata or {})
        self.retry_seconds = retry_seconds

    @property
    def logged(self) -> str:
        """What logs say of it: of a bad request the reason and the fields alone, for its words may repeat what the
        caller wrote."""
        if self.code is grpc.StatusCode.INVALID_ARGUMENT:
            return " ".join([self.reason, *self.fields])
        return self.message

    @property
    def retry_milliseconds(self) -> int | None:
        """When trying again makes sense."""
        return None if self.retry_seconds is None else round(self.retry_seconds * 1000)

    def to_status(self) -> status_pb2.Status:
        """The error as ``google.rpc.Status`` with its details; of one that is too long for a trailer, what fits."""
        metadata = trailers.first_of(self.metadata, trailers.METADATA_BYTES)
        details: list[Any] = [error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=metadata)]
        if self.fields:
            violations = [
                error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
                for field, description in trailers.first_of(self.fields, trailers.FIELD_BYTES).items()
            ]
            details.append(error_details_pb2.BadRequest(field_violations=violations))
        if self.retry_milliseconds is not None:
            delay = duration_pb2.Duration()
            delay.FromMilliseconds(self.retry_milliseconds)
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        message = trailers.cut(self.message, trailers.MESSAGE_BYTES)
        status = status_pb2.Status(code=self.code.value[0], message=message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        return status


def invalid_argument(field: str, description: str, *, reason: str = "INVALID_FIELD") -> ServiceError:
    """INVALID_ARGUMENT for one field; ``description`` says what was found and what is allowed."""
    message = f"{field}: {description}"
    return ServiceError(grpc.StatusCode.INVALID_ARGUMENT, message, reason=reason, fields={field: description})


def status_of(error: grpc.RpcError) -> status_pb2.Status | None:
    """The ``google.rpc.Status`` inside a client-side error, if the server sent one."""
    metadata = getattr(error, "trailing_metadata", lambda: None)() or ()
    for key, value in metadata:
        if key == DETAILS_KEY:
            return status_pb2.Status.FromString(value)
    return None


def error_info_of(error: grpc.RpcError) -> error_details_pb2.ErrorInfo | None:
    """The ``ErrorInfo`` inside a client-side error, if the server sent one."""
    for detail in getattr(status_of(error), "details", ()):
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    return None


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: ServiceError) -> NoReturn:
    """End a call with a domain error."""
    status = error.to_status()
    trailing: list[tuple[str, str | bytes]] = []
    if name := request_ids.current():
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.RequestInfo(request_id=name))
        status.details.append(packed)
        if request_ids.is_plain(name):
            trailing.append((request_ids.HEADER, name))
    trailing.append((DETAILS_KEY, status.SerializeToString()))
    if error.retry_milliseconds is not None:
        trailing.append((PUSHBACK_KEY, str(error.retry_milliseconds)))
    # To be read by interceptors further out: `abort` itself leaves neither in the context.
    context.set_code(error.code)
    context.set_details(status.message)
    try:
        await context.abort(error.code, status.message, tuple(trailing))
    except grpc.aio.AbortError as ended:
        _forget_frames_after(context, ended)
        raise


def _forget_frames_after(context: Any, ended: grpc.aio.AbortError) -> None:
    """Let go of what the frames of an ended call hold, the request above all.

    gRPC keeps the error in the call's state and the frames name the call's context: a cycle that would lie there until
    a collection.
    """

    def forget(context: Any) -> None:
        ended.__context__ = None
        ended.with_traceback(None)

    context.add_done_callback(forget)


class MalformedMessage:
    """Stands for a request whose bytes are no message: the servicer's first look at it ends the call.

    gRPC itself would answer UNKNOWN, which tells a client to retry what can never succeed.
    """

    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, name: str) -> NoReturn:
        message = f"the request is no valid message: {object.__getattribute__(self, '_error')}"
        raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, message, reason="MALFORMED_MESSAGE")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a servicer raises into a status. Cancellation and ``context.abort`` pass through untouched.

    Attributes:
        draining: refuse every new call with UNAVAILABLE.
        idle: set while no call runs, but for those of gRPC's own services.
    """

    def __init__(self) -> None:
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._running = 0

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler: Any = await continuation(handler_call_details)
        # gRPC's own services (health, reflection) report their errors themselves.
        if handler is None or handler_call_details.method.startswith("/grpc."):
            return handler  # type: ignore[no-any-return]
        method = handler_call_details.method
        wrap = _wrap_stream if handler.response_streaming else _wrap_unary
        refuse = _refuse_stream if handler.response_streaming else _refuse_unary
        return behaving(
            handler,
            lambda behaviour: wrap(refuse if self.draining else behaviour, method, self._seam),
            _tolerant(handler.request_deserializer),
        )

    @contextlib.asynccontextmanager
    async def _seam(self, context: Any, method: str) -> AsyncIterator[None]:
        self._running += 1
        self.idle.clear()
        try:
            yield
        except ServiceError as error:
            logger.info("%s: %s: %s", method, error.code.name, error.logged)
            await abort(context, error)
        except grpc.aio.AbortError:
            raise
        except Exception:
            logger.exception("%s failed", method)
            message = f"{method} failed; see the log of the service"
            await abort(context, ServiceError(grpc.StatusCode.INTERNAL, message, reason="INTERNAL"))
        finally:
            self._running -= 1
            if not self._running:
                self.idle.set()


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def call(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return MalformedMessage(error)

    return call


def _draining() -> ServiceError:
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE, "the service is shutting down", reason="SHUTTING_DOWN", retry_seconds=1.0
    )


async def _refuse_unary(request: Any, context: Any) -> NoReturn:
    raise _draining()


async def _refuse_stream(request: Any, context: Any) -> AsyncIterator[Any]:
    raise _draining()
    yield  # what makes it a generator


def _wrap_unary(behaviour: Behaviour, method: str, seam: Seam) -> Behaviour:
    async def call(request: Any, context: Any) -> Any:
        async with seam(context, method):
            return await behaviour(request, context)

    return call


def _wrap_stream(behaviour: Behaviour, method: str, seam: Seam) -> Behaviour:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        async with seam(context, method):
            responses = behaviour(request, context)
            if not inspect.isasyncgen(responses):
                raise TypeError(f"{method} must be an async generator")
            # Closing it here, not at garbage collection, is what frees a stream's resources when its client leaves.
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response

    return call
