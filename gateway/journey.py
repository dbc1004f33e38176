"""The way of one request over workers: when its worker is gone it pauses, and goes on on another one of the same model.

    runs on A ... A is lost | pause: wait for a worker, send it the tokens so far | runs on B ...

A request that survives its workers can also be what kills them. So after `max_worker_losses` lost workers it is given
up, while leaving a worker that drains or is frozen costs only one of the `max_migrations`.
"""

import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import grpc

from gateway.interruptions import Cause
from gateway.migration import Call, Migrations
from gateway.workers import Worker
from octavo.worker.v1 import worker_pb2
from service import tracing
from service.errors import ServiceError

logger = logging.getLogger(__name__)

# A worker that failed a request is left out until it was seen in trouble and came back, or for so long: the looks at it
# are a second apart and take up to two.
SHUN_SECONDS = 3.0
SHUN_REFUSING_SECONDS = 1.0
# Nothing tells when a worker may be asked again that was only left out.
ASK_AGAIN_SECONDS = 0.5

Route = Callable[[Collection[Worker], Sequence[int]], Awaitable[Worker]]
"""Picks a worker, other than the given ones, for the prompt and the given tokens."""


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
        tracing.current().event("resumed", worker=self.worker.address, paused_seconds=seconds)
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
        # A new request that finds no worker fails at once, so does one that was refused by the worker it found.
        wait_seconds = self.shared.policy.wait_seconds if self.departures else 0.0
        self.worker = await self._next(failure, tokens, self._searching_since + wait_seconds)

    def _pause(self, cause: Cause, failure: ServiceError, now: float) -> None:
        logger.info(
            "a request pauses: %s",
            failure.message,
            extra={"request_id": self.request_id, "worker": self.worker.address, "cause": cause.value},
        )
        if self._paused_at is None:
            self._paused_at = now
            self.shared.paused(cause)
            tracing.current().event("paused", worker=self.worker.address, cause=cause.value)

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
                waited = f"came within {self.shared.policy.wait_seconds:g} s" if self.departures else "is ready"
                raise _final(failure, f"no other worker of its model {waited}")
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
