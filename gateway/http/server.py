"""Serves the ASGI application in the event loop of the gateway, and drains it."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator

import uvicorn

from gateway.http.app import application
from gateway.http.inspecting import site_of
from gateway.http.patience import PatientProtocol
from gateway.http.surface import Surface
from service.channels import TlsFiles
from service.listening import cannot_listen
from service.serving import NOTICE_SECONDS

logger = logging.getLogger(__name__)

# Unsent bytes that the kernel takes for one connection; then the stream's reader counts as slow and its worker waits.
# Without it the kernel takes megabytes, which are minutes of tokens.
UNSENT_BYTES = 64 * 1024

# A connection without a request is closed after this; longer than load balancers keep theirs, so that they close first.
IDLE_SECONDS = 75
BACKLOG = 2048
CUT_OFF_SECONDS = 2.0


class HttpServer:
    """uvicorn beside the gRPC server: one loop, one set of signals, one drain."""

    def __init__(self, surface: Surface, tls: TlsFiles | None = None) -> None:
        self._surface = surface
        self._inspector = site_of(surface) if surface.settings.inspect else None
        self._tls = tls
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, listen: str) -> str:
        """Listen on ``host:port`` (port 0 picks one) and return the address in use.

        Raises:
            OSError: the address cannot be bound, or a TLS file cannot be read.
        """
        bound = _bind(listen)
        tls = self._tls or TlsFiles()
        config = uvicorn.Config(
            application(self._surface, self._inspector),
            # h11 and not httptools, which is faster by 7 us per event: its headers have no bound.
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
            ssl_certfile=tls.certificate,
            ssl_keyfile=tls.key,
            ssl_ca_certs=tls.ca,
            ssl_cert_reqs=ssl.CERT_REQUIRED if tls.ca else ssl.CERT_NONE,
        )
        try:
            config.load()
        except BaseException:
            bound.close()
            raise
        self._server = server = _Server(config)
        self._serving = asyncio.create_task(server.serve([bound]))
        started = asyncio.create_task(server.up.wait())
        await asyncio.wait((self._serving, started), return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            await self._serving
        host = listen.rpartition(":")[0]
        return f"{host}:{bound.getsockname()[1]}"

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new generations, let running ones finish for up to ``grace_seconds``, then end them with an error."""
        server, serving = self._server, self._serving
        if server is None or serving is None:
            return
        self._surface.draining = True
        await asyncio.sleep(min(NOTICE_SECONDS, grace_seconds))
        server.should_exit = True
        if self._inspector is not None:
            await self._inspector.close()  # its streams would run through the whole grace
        await asyncio.wait((serving,), timeout=grace_seconds)
        self._surface.cut_off.set_result(None)
        await asyncio.wait((serving,), timeout=CUT_OFF_SECONDS)
        # What is left are connections whose client reads no more.
        server.force_exit = True
        await asyncio.wait((serving,), timeout=CUT_OFF_SECONDS)
        serving.cancel()


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals to the gateway.

    Attributes:
        up: set once it listens.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(AttributeError, OSError):
                # Inherited by accepted connections.
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise cannot_listen(listen, error, "--http-listen") from error
    return bound
