"""The name of a gRPC call: begins with its ``x-request-id``, or is the request's own; told in the trailer too."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from service import request_ids
from service.request_ids import HEADER


class Naming(grpc.aio.ServerInterceptor):
    """Names each call before anything can refuse it. To be the first of the interceptors."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        metadata = handler_call_details.invocation_metadata or ()
        given = next((value for key, value in metadata if key == HEADER), "")
        # A call is one task from here to its end, so what is set here is its own.
        request_ids.enter(request_ids.unique(given if isinstance(given, str) else ""))
        return await continuation(handler_call_details)


@contextlib.contextmanager
def named(context: "grpc.aio.ServicerContext[Any, Any]") -> Iterator[None]:
    """Tell the name in the trailer of a call that succeeds; one that fails tells it with its error."""
    yield
    name = request_ids.current()
    if request_ids.is_plain(name):
        context.set_trailing_metadata(((HEADER, name),))


def own_name(given: str) -> str:
    """The name of the call at hand from now on: what its request gives it, where it gives one."""
    if given:
        request_ids.enter(given)
    return request_ids.current()
