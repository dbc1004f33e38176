"""``octavo inspect --web``: the gateway's inspector page, served from here and fed straight from a KV manager."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cli.failures import CliError
from gateway.http.app import EXCEPTION_HANDLERS
from gateway.inspector.hub import Hub
from gateway.inspector.site import PAGE, Site
from service.channels import TlsFiles
from service.settings import check_address

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def serve_web(manager: str, listen: str, tls: TlsFiles | None = None) -> None:
    """Serve the page until Ctrl-C, and print where it is.

    Args:
        manager: the KV manager, host:port.
        listen: host:port; port 0 picks one.
        tls: the way to the manager.

    Raises:
        CliError: it is no address, or it is taken.
    """
    bound = _bind(listen)
    host = bound.getsockname()[0]
    asyncio.run(_serve(Site(Hub((manager,), tls)), bound, LOOPBACK if host in ("127.0.0.1", "::1") else ("*",)))


async def _serve(site: Site, bound: socket.socket, hosts: Sequence[str]) -> None:
    async def to_page(_: Request) -> Response:
        return RedirectResponse(PAGE)

    app = Starlette(
        routes=[Route("/", to_page), *site.routes()],
        # A page from elsewhere whose name leads to this machine must not read what is here.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False)
    server = _Server(config, site)
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port}{PAGE} (Ctrl-C ends)", flush=True)
    await server.serve([bound])


class _Server(uvicorn.Server):
    """Ends the streams first, which would never end by themselves."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._site.close()
        await super().shutdown(sockets)


def _bind(listen: str) -> socket.socket:
    try:
        host, _, port = check_address(listen).rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with contextlib.ExitStack() as undone:
            bound = undone.enter_context(socket.socket(family, socket.SOCK_STREAM))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, int(port)))
            bound.listen()  # who comes before the server serves has to wait, and is not turned away
            undone.pop_all()
    except (OSError, ValueError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CliError(f"cannot show the page on {listen}: {reason.lower()}; choose another --web-listen") from error
    return bound
