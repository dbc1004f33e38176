"""The inspector of a gateway: which managers it shows, to whom, and the text of tokens where that is allowed."""

from starlette.requests import Request

from gateway.http.errors import status_of
from gateway.http.surface import Surface
from gateway.inspector.hub import Hub
from gateway.inspector.site import Site
from service.errors import ServiceError

FORBIDDEN = 403


def site_of(surface: Surface) -> Site:
    """The page and its data; connects to no manager before somebody looks."""
    settings = surface.settings
    hub = Hub(settings.inspect_managers or settings.managers, settings.manager_tls)

    def status(request: Request) -> int:
        try:
            tenant = surface.gate.tenant_of(request.headers)
        except ServiceError as error:
            return status_of(error)
        return 200 if tenant.operator else FORBIDDEN

    def decode(pool: str, ids: list[int]) -> str | None:
        for worker in surface.router.workers:
            if worker.pool == pool and worker.model is not None:
                return worker.model.tokenizer.decode(ids)
        return None

    return Site(hub, status=status, decode=decode if settings.inspect_tokens else None)
