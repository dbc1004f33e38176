"""The door of the HTTP surface: no request reaches a page without a tenant, but those of health."""

import logging

import grpc
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import error_response
from gateway.http.request_ids import request_id_of
from gateway.inspector import site
from gateway.tenancy.gate import Gate
from gateway.tenancy.tenant import Tenant
from service.errors import ServiceError

logger = logging.getLogger(__name__)

OPEN = frozenset({"/health", "/livez"}) | site.OPEN
METRICS = frozenset({"/metrics"})
# They show all tenants.
OPERATORS_ONLY = METRICS | site.DATA

_TENANT = "octavo.tenant"


class Door:
    """Finds the tenant of a request by its headers, or answers 401 before its body is read.

    Args:
        app: what is behind it.
        gate: knows the tenants.
        open_metrics: whether ``/metrics`` needs no key.
    """

    def __init__(self, app: ASGIApp, gate: Gate, *, open_metrics: bool) -> None:
        self._app = app
        self._gate = gate
        self._open = OPEN | METRICS if open_metrics else OPEN

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                scope[_TENANT] = self._tenant_of(scope)
            except ServiceError as error:
                logger.info("%s: %s", error.code.name, error.logged, extra={"request_id": request_id_of(scope)})
                response = error_response(error)
                # The rest of the body would have to be read to find the next request.
                response.headers["connection"] = "close"
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _tenant_of(self, scope: Scope) -> Tenant:
        tenant = self._gate.tenant_of(Headers(scope=scope))
        if scope["path"] in OPERATORS_ONLY and not tenant.operator:
            message = "this page shows all tenants: a key of an operator is needed"
            raise ServiceError(grpc.StatusCode.PERMISSION_DENIED, message, reason="OPERATORS_ONLY")
        return tenant


def tenant_of(scope: Scope) -> Tenant:
    """Whose request it is."""
    tenant: Tenant = scope[_TENANT]
    return tenant
