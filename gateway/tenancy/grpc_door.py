"""The door of the gRPC surface: no call reaches the servicer without a tenant."""

import contextvars
import logging
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
import grpc.aio

from gateway.tenancy.gate import Gate
from gateway.tenancy.keys import HEADERS
from gateway.tenancy.tenant import Tenant
from service.errors import ServiceError, abort
from service.handlers import Continuation

logger = logging.getLogger(__name__)

# Health and reflection; and workers, who have a token of their own.
OPEN = ("/grpc.", "/octavo.gateway.v1.RegistryService/")

_tenant: contextvars.ContextVar[Tenant] = contextvars.ContextVar("octavo.tenant")


def current_tenant() -> Tenant:
    """Whose call the servicer is in."""
    return _tenant.get()


class Door(grpc.aio.ServerInterceptor):
    """Finds the tenant of a call by its metadata, or refuses the call before its message is read."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if not handler_call_details.method.startswith(OPEN):
            metadata = handler_call_details.invocation_metadata or ()
            headers = {name: str(value) for name, value in metadata if name in HEADERS}
            try:
                # A call is one task from here to its end, so what is set here is its own.
                _tenant.set(self._gate.tenant_of(headers))
            except ServiceError as error:
                logger.info("%s: %s: %s", handler_call_details.method, error.code.name, error.logged)
                return _refuse_with(error)
        return await continuation(handler_call_details)


def _refuse_with(error: ServiceError) -> "grpc.RpcMethodHandler[Any, Any]":
    async def refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[NoReturn]:
        await abort(context, error)
        yield  # what makes it a generator

    # A stream of requests is read by whoever iterates over it: here nobody.
    return grpc.stream_stream_rpc_method_handler(refuse)
