"""The name of a gRPC call: begins with its ``x-request-id``, or is the request's own; told in the trailer too."""

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc.aio

from service import request_ids
from service.request_ids import HEADER


@contextlib.contextmanager
def named(context: "grpc.aio.ServicerContext[Any, Any]") -> Iterator[None]:
    """Name the call at hand; each has a task of its own. A call that fails says its name with its error."""
    given = next((value for key, value in context.invocation_metadata() or () if key == HEADER), "")
    request_ids.enter(request_ids.unique(given if isinstance(given, str) else ""))
    yield
    name = request_ids.current()
    if request_ids.is_plain(name):
        context.set_trailing_metadata(((HEADER, name),))


def own_name(given: str) -> str:
    """The name of the call at hand from now on: what its request gives it, where it gives one."""
    if given:
        request_ids.enter(given)
    return request_ids.current()
