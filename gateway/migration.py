"""Requests whose worker is gone pause, and go on on another worker of the same model.

    runs on A ... A is lost | pause: wait for a worker, send it the tokens so far | runs on B ...

A request that survives its workers can also be what kills them. So after `max_worker_losses` lost workers it is given
up, while leaving a worker that drains or is frozen costs only one of the `max_migrations`.
"""

import asyncio
import contextlib
import enum
import logging
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.interruptions import Cause
from gateway.routing import Router
from gateway.workers import Worker
from octavo.worker.v1 import worker_pb2
from service.errors import ServiceError

logger = logging.getLogger(__name__)

# A worker that failed a request is left out until it was seen in trouble and came back, or for so long: the looks at it
# are a second apart and take up to two.
SHUN_SECONDS = 3.0
SHUN_REFUSING_SECONDS = 1.0
# Nothing tells when a worker may be asked again that was only left out.
ASK_AGAIN_SECONDS = 0.5
PAUSE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Call(AsyncIterable[worker_pb2.GenerateResponse], Protocol):
    """A worker's call: its messages, and the way to end it."""

    def cancel(self) -> object: ...


Route = Callable[[Collection[Worker], Sequence[int]], Awaitable[Worker]]
"""Picks a worker, other than the given ones, for the prompt and the given tokens."""


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
        self._attempts: dict[Worker, set[_Attempt]] = {}
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
        for cause in set(Cause) - {Cause.REFUSED}:
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
        """Return when a worker has changed, or after ``seconds``."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

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
            self._attempts.setdefault(worker, set()).add(attempt)
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
                attempts.discard(attempt)
                if not attempts:
                    del self._attempts[worker]

    def paused(self, cause: Cause) -> None:
        self._pauses.labels(cause.value).inc()

    def resumed(self, seconds: float) -> None:
        self._ended.labels(_Outcome.RESUMED.value).inc()
        self._seconds.observe(seconds)

    def given_up(self, *, by_client: bool) -> None:
        self._ended.labels((_Outcome.CANCELLED if by_client else _Outcome.FAILED).value).inc()


@dataclass(slots=True)
class Journey:
    """The way of one request over workers; a context that ends with the request.

    Attributes:
        request_id: its name in logs.
        shared: what all requests share.
        route: finds a worker.
        patience: seconds until the client has to have its answer, as of now; None for no limit.
        worker: where it runs, or ran last.
        departures: workers that it has left; one that refused it never had it.
        losses: of them, those that were lost.
        migrations: times another worker went on with it.
        paused_seconds: what that cost.
    """

    request_id: str
    shared: Migrations
    route: Route
    patience: Callable[[], float | None]
    worker: Worker
    departures: int = 0
    losses: int = 0
    migrations: int = 0
    paused_seconds: float = 0.0
    _paused_at: float | None = None
    _searching_since: float | None = None
    _shunned: dict[Worker, float] = field(default_factory=dict)

    def __enter__(self) -> "Journey":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._paused_at is not None:
            self._paused_at = None
            self.shared.given_up(by_client=not isinstance(error, Exception))

    def call(
        self, request: worker_pb2.GenerateRequest, timeout: float | None
    ) -> contextlib.AbstractAsyncContextManager[Call]:
        """Run the request on the worker; as ``Migrations.call``."""
        return self.shared.call(self.worker, request, timeout)

    def answered(self) -> float | None:
        """To be called with each message: how long the request had paused before it; None when it had not."""
        if self._searching_since is None:
            return None
        self._searching_since = None
        paused_at, self._paused_at = self._paused_at, None
        if paused_at is None:
            return None
        seconds = time.monotonic() - paused_at
        self.migrations += 1
        self.paused_seconds += seconds
        self.shared.resumed(seconds)
        logger.info(
            "a request goes on on worker %s after %.3f s",
            self.worker.address,
            seconds,
            extra={"request_id": self.request_id, "migrations": self.migrations},
        )
        return seconds

    async def move(self, cause: Cause, failure: ServiceError, tokens: Sequence[int]) -> None:
        """Find the worker that goes on; it is ``worker`` then.

        Args:
            cause: why the request has to leave its worker.
            failure: what its client hears when there is no other way.
            tokens: what the next worker will be sent beside the prompt.

        Raises:
            ServiceError: the failure and why it is final, or the deadline.
        """
        left, now = self.worker, time.monotonic()
        self.losses += cause is Cause.LOST
        if self._searching_since is None:
            self._searching_since = now
        if cause is not Cause.REFUSED:
            self.departures += 1
            self._pause(cause, failure, now)
        self._check_bounds(failure)
        self._shunned[left] = now + (SHUN_REFUSING_SECONDS if cause is Cause.REFUSED else SHUN_SECONDS)
        left.look_now()
        self.worker = await self._next(failure, tokens, self._searching_since + self.shared.policy.wait_seconds)

    def _pause(self, cause: Cause, failure: ServiceError, now: float) -> None:
        logger.info(
            "a request pauses: %s",
            failure.message,
            extra={"request_id": self.request_id, "worker": self.worker.address, "cause": cause.value},
        )
        if self._paused_at is None:
            self._paused_at = now
            self.shared.paused(cause)

    def _check_bounds(self, failure: ServiceError) -> None:
        policy = self.shared.policy
        if self.losses > policy.max_worker_losses:
            raise _final(failure, f"the request has lost {self.losses} workers, and may be why")
        if self.departures > policy.max_migrations:
            raise _final(failure, f"a request migrates at most {policy.max_migrations} times")

    async def _next(self, failure: ServiceError, tokens: Sequence[int], give_up: float) -> Worker:
        patience = self.patience()
        deadline = math.inf if patience is None else time.monotonic() + patience
        while True:
            try:
                return await self.route(self._shunned_now(), tokens)
            except ServiceError as refusal:
                if refusal.code is not grpc.StatusCode.UNAVAILABLE:
                    raise
            now = time.monotonic()
            if now >= deadline:
                message = f"the deadline passed while the request waited for a worker: {failure.message}"
                raise ServiceError(grpc.StatusCode.DEADLINE_EXCEEDED, message, reason="DEADLINE_EXCEEDED")
            if now >= give_up:
                waited = self.shared.policy.wait_seconds
                raise _final(failure, f"no other worker of its model came within {waited:g} s")
            await self.shared.news(min(give_up - now, deadline - now, ASK_AGAIN_SECONDS))

    def _shunned_now(self) -> Collection[Worker]:
        """Those that failed the request and were not seen to come back since. One in trouble is left out anyway."""
        now = time.monotonic()
        self._shunned = {
            worker: until for worker, until in self._shunned.items() if worker.trouble is None and now < until
        }
        return self._shunned.keys()


def _final(failure: ServiceError, why: str) -> ServiceError:
    return ServiceError(
        failure.code,
        f"{failure.message}; {why}",
        reason=failure.reason,
        metadata=failure.metadata,
        retry_seconds=failure.retry_seconds,
    )
