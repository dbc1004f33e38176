"""grpc.health.v1 for a server whose services are ready together.

gRPC's own servicer holds a lock while it writes to a watcher, so that one who does not read holds up every change and
the drain; it forgets all watchers of a service when one of them leaves; and its ``Watch`` streams never end, so that a
drain waits for them.
"""

import asyncio
from collections.abc import Collection

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

Context = grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # comes without types
    """NOT_SERVING until told otherwise, and for good once it has left.

    Args:
        services: full names, and "" for the server as a whole.
    """

    def __init__(self, services: Collection[str]) -> None:
        self._services = services
        self._serving = self._leaving = self._over = False
        self._news = asyncio.Event()

    def set(self, *, serving: bool) -> None:
        """Answer SERVING or NOT_SERVING; nothing changes any more after ``leave``."""
        self._serving = serving and not self._leaving
        self._tell()

    def leave(self) -> None:
        """NOT_SERVING for good: a poller that is late must not lift it."""
        self._leaving = True
        self.set(serving=False)

    def end_watches(self) -> None:
        """End all ``Watch`` streams, those to come too, each when it has told how things stand."""
        self._over = True
        self._tell()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        told = None
        while True:
            # Taken before the write, which may last: whatever comes meanwhile is seen by it.
            news = self._news
            status = self._status(request.service)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            if self._over and not news.is_set():
                return
            await news.wait()

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
        if service not in self._services:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        return health_pb2.HealthCheckResponse.SERVING if self._serving else health_pb2.HealthCheckResponse.NOT_SERVING

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
