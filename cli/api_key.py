"""The API key of a gateway's tenant, put into the metadata of every call."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import grpc

from cli.failures import CliError

HEADER = "authorization"


def keyed(channel: grpc.Channel, api_key: str) -> grpc.Channel:
    """A channel whose calls carry the key, which is never repeated in a message.

    Raises:
        CliError: it is no key, for metadata cannot hold it.
    """
    if not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise CliError("the API key holds characters that no key has: printable ASCII without spaces is needed")
    return grpc.intercept_channel(channel, _Keyed(f"Bearer {api_key}"))


class _Details(
    namedtuple("_Details", ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression")),
    grpc.ClientCallDetails,
):
    """What gRPC asks of the details of a call, with more metadata."""

    __slots__ = ()


class _Keyed(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def __init__(self, authorization: str) -> None:
        self._entry = (HEADER, authorization)

    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_key(client_call_details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_key(client_call_details), request)

    def _with_key(self, details: Any) -> _Details:
        return _Details(
            details.method,
            details.timeout,
            [*(details.metadata or ()), self._entry],
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
