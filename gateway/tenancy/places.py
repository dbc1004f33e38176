"""The places at the workers of one model: taken in the order of the fair queue, given back when a request ends."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import grpc

from gateway.tenancy.account import limited
from gateway.tenancy.fair_queue import FairQueue, Waiting
from gateway.tenancy.tenant import Tenant
from service.errors import ServiceError

LEAST_RETRY_SECONDS = 1.0
MOST_RETRY_SECONDS = 60.0

Capacity = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request wants.

    Attributes:
        cost: the most tokens that it takes: prompt and all its answers.
        places: samples that run at once.
        priority: smaller is served first, among the tenant's own.
        patience: seconds until its client has to hear something, None for no limit.
    """

    cost: int
    places: int
    priority: int
    patience: float | None = None


@dataclass(slots=True)
class Place:
    """What a request holds.

    Attributes:
        waited: seconds until it got it.
        places: how many places it holds.
        prompt_tokens, generated_tokens: what it has taken, for its holder to say before it leaves.
    """

    waited: float = 0.0
    places: int = 1
    prompt_tokens: int = 0
    generated_tokens: int = 0

    @property
    def spent(self) -> int:
        """All tokens that it has taken; its tenant's next turn depends on them."""
        return self.prompt_tokens + self.generated_tokens


class Places:
    """``capacity`` places, each for one sample.

    A request takes as many as it has samples, all at once, but at most half of them. Nobody goes past the one that is
    next, however few it wants, for that one would wait for ever behind small ones; so at most half lie idle before it.

    Args:
        capacity: how many there are now; None for any number.
        ageing_seconds: of the queue.
        max_queued: the most requests of one tenant that wait.
    """

    def __init__(self, capacity: Capacity, ageing_seconds: float, max_queued: int) -> None:
        self._capacity = capacity
        self._max_queued = max_queued
        self._queue = FairQueue(ageing_seconds)
        self._granted: dict[Waiting, asyncio.Future[None]] = {}
        self._taken = 0

    @property
    def taken(self) -> int:
        """Places in use."""
        return self._taken

    def waiting(self, tenant: str) -> int:
        """How many requests of a tenant wait."""
        return self._queue.waiting(tenant)

    @contextlib.asynccontextmanager
    async def taken_by(self, tenant: Tenant, demand: Demand) -> AsyncIterator[Place]:
        """Hold places while the block runs, which says what it has spent.

        Leaving the block, cancelled or not, while it waits or later, gives everything back.

        Raises:
            ServiceError: RESOURCE_EXHAUSTED, QUEUE_FULL; DEADLINE_EXCEEDED while it waits.
        """
        begun = time.monotonic()
        request = Waiting(tenant.name, tenant.weight, demand.cost, demand.priority, demand.places, begun)
        place = Place()
        if self._free(request) and not self._queue:
            self._queue.push(request, begun)
            self._grant_next(begun)
        else:
            self._check_room(tenant, begun)
            await self._wait(request, demand.patience)
            place.waited = time.monotonic() - begun
        place.places = request.places
        try:
            yield place
        finally:
            self._give_back(request, place.spent)

    def grant(self) -> None:
        """Give free places to those that wait; call it when there are more than before."""
        now = time.monotonic()
        while (head := self._queue.peek(now)) is not None and self._free(head):
            self._grant_next(now)
        if not self._taken:
            self._queue.forget()

    async def _wait(self, request: Waiting, patience: float | None) -> None:
        self._queue.push(request, request.arrived)
        granted = self._granted[request] = asyncio.get_running_loop().create_future()
        # Room may have come since it was last looked for: a worker that is new tells nobody here.
        self.grant()
        try:
            async with asyncio.timeout(patience):
                await granted
        except BaseException as error:
            self._granted.pop(request, None)
            if request.left:
                # Places came together with whatever ended the waiting.
                self._give_back(request, spent=0)
            else:
                self._queue.remove(request)
                # Its successor may fit where it did not.
                self.grant()
            if isinstance(error, TimeoutError):
                raise _too_late(time.monotonic() - request.arrived) from None
            raise

    def _grant_next(self, now: float) -> None:
        request = self._queue.pop(now)
        assert request is not None
        request.places = self._needs(request)
        self._taken += request.places
        granted = self._granted.pop(request, None)
        if granted is not None and not granted.done():
            granted.set_result(None)

    def _give_back(self, request: Waiting, spent: int) -> None:
        self._queue.settle(request, spent)
        self._taken -= request.places
        self.grant()

    def _free(self, request: Waiting) -> bool:
        capacity = self._capacity()
        if capacity is None or not self._taken:
            return True
        return self._taken + self._needs(request) <= capacity

    def _needs(self, request: Waiting) -> int:
        capacity = self._capacity()
        return request.places if capacity is None else min(request.places, max(1, capacity // 2))

    def _check_room(self, tenant: Tenant, now: float) -> None:
        waiting = self._queue.waiting(tenant.name)
        most = min(self._max_queued, tenant.limits.queued_requests)
        if waiting < most:
            return
        # They leave one by one, and the whole queue in about the time that its next one has waited.
        head = self._queue.peek(now)
        waited = 0.0 if head is None else now - head.arrived
        retry = min(max(LEAST_RETRY_SECONDS, waited / max(1, waiting)), MOST_RETRY_SECONDS)
        what = f"{waiting} requests of this key's tenant wait for a worker already, allowed are {most:g}"
        raise limited(tenant.name, what, "QUEUE_FULL", retry)


def _too_late(seconds: float) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        f"the deadline passed while the request waited for a worker for {seconds:.3f} s",
        reason="DEADLINE_EXCEEDED",
    )
