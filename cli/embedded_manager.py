"""A KV manager inside another process: called directly by the worker's engine, and by everyone else over gRPC."""

import asyncio
import collections
import functools
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kv_manager.clock import follow_leases
from kv_manager.core.manager import Manager
from kv_manager.metrics import step_times
from kv_manager.servicer import KvManagerServicer
from kv_manager.settings import Settings
from model_worker.engine.manager_client import ManagerRefused
from octavo.kv.v1 import attach_pb2, kv_manager_pb2_grpc, steps_pb2
from service.errors import ServiceError
from service.serving import Server

SERVICE = "octavo.kv.v1.KvManagerService"


class LockedManager(Manager):
    """A ``Manager`` that several threads may call: one public method runs at a time."""

    def __init__(self, **options: Any) -> None:
        self._lock = threading.RLock()
        super().__init__(**options)


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: LockedManager, *arguments: Any, **keywords: Any) -> Any:
        with self._lock:
            return method(self, *arguments, **keywords)

    return call


# Over every public method, so that one added to Manager later is locked too.
for _name, _method in list(vars(Manager).items()):
    if callable(_method) and not _name.startswith("_"):
        setattr(LockedManager, _name, _one_at_a_time(_method))


class InProcessManagerClient:
    """``model_worker``'s ``ManagerClient`` without a wire: a step is answered when it is sent.

    To the lease it counts as an open stream from attach to detach: worker and manager can only end together.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._answers: collections.deque[steps_pb2.StepResponse | ServiceError] = collections.deque()

    def capabilities(self) -> frozenset[int]:
        return frozenset(self._manager.get_capabilities().capabilities)

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        self._answers.clear()
        try:
            response = self._manager.attach(parts)
            self._manager.lease(response.header.pool, response.header.epoch).open_stream()
        except ServiceError as error:
            raise _refusal(error) from error
        return response

    def send(self, request: steps_pb2.StepRequest) -> None:
        # An error belongs to the answer: over gRPC, too, a step's error is raised where its answer is received.
        try:
            self._answers.append(self._manager.step(request))
        except ServiceError as error:
            self._answers.append(error)

    def receive(self) -> steps_pb2.StepResponse:
        answer = self._answers.popleft()
        if isinstance(answer, ServiceError):
            raise _refusal(answer) from answer
        return answer

    def detach(self, request: attach_pb2.DetachRequest) -> None:
        try:
            self._manager.detach(request)
        except ServiceError as error:
            raise _refusal(error) from error

    def close(self) -> None:
        """Nothing to let go of."""


def _refusal(error: ServiceError) -> ManagerRefused:
    return ManagerRefused(error.code, error.reason, error.message)


class EmbeddedManager:
    """The manager, and a thread that serves it over gRPC with its leases, as the process of its own does.

        with EmbeddedManager(settings) as embedded:
            client = InProcessManagerClient(embedded.manager)
            print(embedded.address)

    Entering raises ``OSError`` when the address cannot be bound.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.manager = LockedManager(
            manager_id=secrets.token_hex(8),
            first_epoch=time.time_ns() // 1_000_000,
            lease_ms=int(settings.lease_seconds * 1000),
            max_blocks=settings.max_pool_blocks,
            watch_token_ids=settings.watch_token_ids,
        )
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kv_manager", daemon=True)
        self._server: Server | None = None
        self._leases: asyncio.Task[None] | None = None

    def __enter__(self) -> "EmbeddedManager":
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        servicer = KvManagerServicer(self.manager, step_times())
        self._server = Server(
            [SERVICE],
            lambda grpc_server: kv_manager_pb2_grpc.add_KvManagerServiceServicer_to_server(servicer, grpc_server),
            self._settings.tls(),
        )
        self.address = await self._server.start(self._settings.listen)
        self._leases = asyncio.create_task(follow_leases(self.manager))
        await self._server.set_ready(True)

    async def _stop(self) -> None:
        if self._leases is not None:
            self._leases.cancel()
        if self._server is not None:
            await self._server.stop(0)
