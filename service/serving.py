"""A gRPC server with health, reflection, signals and a drain, the same for all three services."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.channels import MAX_MESSAGE_BYTES, MIN_PING_INTERVAL_MS, TlsFiles
from service.errors import ErrorInterceptor
from service.health import Health
from service.listening import check_free

logger = logging.getLogger(__name__)

NOTICE_SECONDS = 0.2
REPEAT_SECONDS = 1.0
TURNS_TO_END = 16
"""Turns of the event loop after a stop, in which handlers of cut calls hear of it and end; they take two."""
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers on one port would each get half of the calls; the second one must fail instead.
    ("grpc.so_reuseport", 0),
]


class Server:
    """A gRPC server that is not ready until told so.

    Args:
        services: full names of the services added by ``register``, for reflection and health.
        register: adds the servicers to the given ``grpc.aio.Server``.
        tls: serve TLS, mutual when ``tls.ca`` is set; None serves plain text.
        interceptors: stand around each call, and see its errors as statuses; the first one is the outermost.
    """

    def __init__(
        self,
        services: Sequence[str],
        register: Callable[[grpc.aio.Server], None],
        tls: TlsFiles | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self._tls = tls
        self._errors = ErrorInterceptor()
        self._server = grpc.aio.server(interceptors=[*interceptors, self._errors], options=SERVER_OPTIONS)
        self._health = Health(("", *services))
        self._ready = False
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        register(self._server)
        reflection.enable_server_reflection(
            [*services, health.SERVICE_NAME, reflection.SERVICE_NAME],
            self._server,
        )

    @property
    def ready(self) -> bool:
        """Whether health answers SERVING."""
        return self._ready

    async def start(self, listen: str) -> str:
        """Listen on ``host:port`` (port 0 picks one) or ``unix:path`` and return the address in use.

        Raises:
            OSError: the address cannot be bound, or a TLS file is none.
        """
        await self.set_ready(False)
        host = listen.rpartition(":")[0]
        credentials = None if self._tls is None else self._tls.server_credentials()
        if not listen.startswith("unix:"):
            check_free(listen, "--listen")
        try:
            if credentials is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}: {error}") from error
        await self._server.start()
        return listen if listen.startswith("unix:") else f"{host}:{port}"

    async def set_ready(self, ready: bool) -> None:
        """Answer SERVING or NOT_SERVING, for the server as a whole and for each service."""
        self._ready = ready
        self._health.set(serving=ready)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, let running ones finish for up to ``grace_seconds``, then cancel them.

        A client whose call is cut then sees UNAVAILABLE from gRPC itself, without ``ErrorInfo``.
        """
        self._ready = False
        self._health.leave()
        # New calls get a plain UNAVAILABLE for a moment before the transport turns them away: one that crosses the
        # GOAWAY would end as CANCELLED, which clients do not retry.
        self._errors.draining = True
        await asyncio.sleep(min(NOTICE_SECONDS, grace_seconds))
        stopped = asyncio.ensure_future(self._server.stop(grace_seconds))
        idle = asyncio.ensure_future(self._errors.idle.wait())
        await asyncio.wait({stopped, idle}, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        self._health.end_watches()
        await stopped
        # A loop that closes before they have ended cancels gRPC's tasks around them, which logs each as an error.
        for _ in range(TURNS_TO_END):
            await asyncio.sleep(0)


def catch_signals() -> "asyncio.Future[signal.Signals]":
    """Catch SIGTERM and SIGINT from now on; the first one is the future's result.

    To be called before a process says that it is ready: whoever reads that may stop it at once. A second signal ends
    the process at once with status 130.

    Not one within a second of the first: a supervisor and its process group often send the same signal twice, and a
    parent's death sends it once per thread of the parent.
    """
    loop = asyncio.get_running_loop()
    caught: asyncio.Future[signal.Signals] = loop.create_future()
    first: float | None = None

    def on_signal(number: signal.Signals) -> None:
        nonlocal first
        if first is None:
            first = loop.time()
            if not caught.done():  # it may have been given up: the process is leaving already
                caught.set_result(number)
        elif loop.time() - first > REPEAT_SECONDS:
            logger.warning("second %s: leaving without a drain", number.name)
            logging.shutdown()
            os._exit(130)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return caught


async def drain_at_signal(server: Server, caught: "asyncio.Future[signal.Signals]", grace_seconds: float) -> None:
    """Serve until a signal is caught, then drain.

    Not ready at once, new calls UNAVAILABLE, running ones get ``grace_seconds``. What still runs then is cut and ends
    UNAVAILABLE. What the service owns is the caller's to close afterwards, since running calls need it until they end.
    """
    number = await caught
    logger.info("%s: draining for up to %g s", number.name, grace_seconds)
    await server.stop(grace_seconds)
