"""What all requests share that may have to leave their worker: which calls run where, news of workers, and the counts.

A worker that is lost ends its calls itself. One that is frozen does not: its calls are ended here, once another worker
can go on with them.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.interruptions import Cause
from gateway.routing import Router
from gateway.workers import Worker
from octavo.worker.v1 import worker_pb2

PAUSE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Call(AsyncIterable[worker_pb2.GenerateResponse], Protocol):
    """A worker's call: its messages, and the way to end it."""

    def cancel(self) -> object: ...


@dataclass(frozen=True, slots=True)
class MigrationPolicy:
    """How far a request may go to stay alive; as the gateway's settings of the same names."""

    wait_seconds: float = 20.0
    max_migrations: int = 8
    max_worker_losses: int = 2


class _Outcome(enum.Enum):
    """How a pause ended."""

    RESUMED = "resumed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class _Attempt:
    """A call that runs on a worker.

    Attributes:
        abandoned: it was cancelled from here, because its worker is frozen.
    """

    call: Call
    abandoned: bool = False

    def abandon(self) -> None:
        self.abandoned = True
        self.call.cancel()


class Abandoned(Exception):
    """The call was cancelled here because its worker is frozen and another one can go on."""


class Migrations:
    """What all requests share: which calls run where, and news of workers.

    Args:
        router: knows the workers.
        policy: how far a request may go.
        registry: counts the pauses there.

    Attributes:
        router, policy: as given.
    """

    def __init__(self, router: Router, policy: MigrationPolicy, registry: CollectorRegistry) -> None:
        self.router = router
        self.policy = policy
        # By age: those of a frozen worker look for another one in that order.
        self._attempts: dict[Worker, dict[_Attempt, None]] = {}
        self._news = asyncio.Event()
        self._pauses = Counter(
            "octavo_gateway_pauses",
            "times a request lost its worker and waited for another",
            ["cause"],
            registry=registry,
        )
        self._ended = Counter("octavo_gateway_pauses_ended", "how those waits ended", ["outcome"], registry=registry)
        self._seconds = Histogram(
            "octavo_gateway_pause_seconds",
            "from the loss of a worker to the first message of the next",
            buckets=PAUSE_BUCKETS,
            registry=registry,
        )
        for cause in Cause:
            if cause is not Cause.REFUSED:
                self._pauses.labels(cause.value)
        for outcome in _Outcome:
            self._ended.labels(outcome.value)

    def workers_changed(self) -> None:
        """To be called whenever a worker's trouble or model has changed."""
        self._news.set()
        self._news = asyncio.Event()
        usable = dict(self.router.models())
        for worker, attempts in self._attempts.items():
            frozen = worker.trouble is not None and worker.trouble.silent
            # With nowhere to go it is better to wait for it: it may only be busy.
            if frozen and worker.model is not None and usable.get(worker.model):
                for attempt in tuple(attempts):
                    attempt.abandon()

    async def news(self, seconds: float) -> None:
        """Return when a worker has changed, or after ``seconds``.

        Not by ``asyncio.wait_for``: before Python 3.12 that returns as if nothing were wrong when it is cancelled at
        the moment of the news, and the request of a client that leaves then would wait on.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    @contextlib.asynccontextmanager
    async def call(
        self, worker: Worker, request: worker_pb2.GenerateRequest, timeout: float | None
    ) -> AsyncIterator[Call]:
        """As ``Worker.generate``.

        Raises:
            Abandoned: the worker is frozen, and another one can go on.
        """
        async with worker.generate(request, timeout) as call:
            attempt = _Attempt(call)
            self._attempts.setdefault(worker, {})[attempt] = None
            try:
                yield call
            except asyncio.CancelledError:
                # gRPC raises the same for a call cancelled here as for a task that is.
                task = asyncio.current_task()
                if attempt.abandoned and task is not None and not task.cancelling():
                    raise Abandoned from None
                raise
            finally:
                attempts = self._attempts[worker]
                del attempts[attempt]
                if not attempts:
                    del self._attempts[worker]

    def paused(self, cause: Cause) -> None:
        self._pauses.labels(cause.value).inc()

    def resumed(self, seconds: float) -> None:
        self._ended.labels(_Outcome.RESUMED.value).inc()
        self._seconds.observe(seconds)

    def given_up(self, *, by_client: bool) -> None:
        self._ended.labels((_Outcome.CANCELLED if by_client else _Outcome.FAILED).value).inc()
