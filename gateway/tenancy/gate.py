"""The gate that every call passes: a key names its tenant, whose limits and turn let it on to the workers."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import NamedTuple

import grpc

from gateway.errors import InvalidRequest
from gateway.prompts import Prompt
from gateway.tenancy.account import Account, Clock, TokenReservation
from gateway.tenancy.directory import Directory
from gateway.tenancy.keys import key_of
from gateway.tenancy.metrics import Counts, TenantMetrics
from gateway.tenancy.places import Capacity, Demand, Place, Places
from gateway.tenancy.tenant import ANONYMOUS, Tenant
from gateway.tenancy.usage import Usage
from service.errors import ServiceError


class QueueBounds(NamedTuple):
    """How requests wait for a place at a worker."""

    ageing_seconds: float
    max_queued: int
    """Requests of one tenant, for one model."""


class Gate:
    """Lets calls in. Belongs to the event loop.

    Args:
        directory: the tenants.
        capacity_of: places at the workers of a model, by its name; None for any number.
        bounds: of the queue.
        metrics: counts what happens.
        clock: seconds, monotonic.

    Attributes:
        metrics: as given.
        draining: whether new calls are refused.
    """

    def __init__(
        self,
        directory: Directory,
        capacity_of: Callable[[str], Capacity],
        bounds: QueueBounds,
        metrics: TenantMetrics,
        clock: Clock = time.monotonic,
    ) -> None:
        self._directory = directory
        self._capacity_of = capacity_of
        self._bounds = bounds
        self.metrics = metrics
        self.draining = False
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._places: dict[str, Places] = {}
        metrics.show(self._counts)

    @property
    def open(self) -> bool:
        """Whether calls need no key."""
        return self._directory.open

    @property
    def running(self) -> int:
        """Calls under way, those that wait included."""
        return sum(account.running for account in self._accounts.values())

    def usage(self) -> list[Usage]:
        """What each tenant takes and has taken, by name."""
        totals = self.metrics.totals()
        tenants = sorted(self._directory.tenants, key=lambda tenant: tenant.name)
        return [
            Usage(tenant, account.running, self._waiting(tenant.name), account.tokens_left, totals[tenant.name])
            for tenant, account in zip(tenants, map(self._account, tenants), strict=True)
        ]

    def tenant_of(self, headers: Mapping[str, str]) -> Tenant:
        """Whose call it is, by HTTP headers or gRPC metadata with names in lower case.

        Raises:
            ServiceError: UNAUTHENTICATED: no key, or nobody's. Which of both is all that is told.
        """
        if self._directory.open:
            return ANONYMOUS
        key = key_of(headers)
        tenant = None if key is None else self._directory.find(key)
        if tenant is None:
            self.metrics.unauthenticated()
            raise _unauthenticated(given=key is not None)
        return tenant

    @contextlib.contextmanager
    def call(self, tenant: Tenant) -> Iterator["Caller"]:
        """Let one call in while the block runs.

        Raises:
            ServiceError: RESOURCE_EXHAUSTED with a RetryInfo; UNAVAILABLE while draining.
        """
        if self.draining:
            message = "the gateway drains: it takes no new requests"
            raise ServiceError(grpc.StatusCode.UNAVAILABLE, message, reason="SHUTTING_DOWN", retry_seconds=1.0)
        account = self._account(tenant)
        with self._counted(tenant), account.call() as reservation:
            self.metrics.let_in(tenant.name)
            yield Caller(self, tenant, reservation)

    def room_changed(self) -> None:
        """To be called when workers came or went."""
        for places in self._places.values():
            places.grant()

    def places(self, model: str) -> Places:
        """The places at the workers of a model."""
        places = self._places.get(model)
        if places is None:
            places = Places(self._capacity_of(model), *self._bounds)
            self._places[model] = places
        return places

    @contextlib.contextmanager
    def _counted(self, tenant: Tenant) -> Iterator[None]:
        """Count what a limit refuses; every such refusal names the tenant."""
        try:
            yield
        except ServiceError as error:
            if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and "tenant" in error.metadata:
                self.metrics.refused(tenant.name, error.reason)
            raise

    def _account(self, tenant: Tenant) -> Account:
        account = self._accounts.get(tenant.name)
        if account is None:
            account = self._accounts[tenant.name] = Account(tenant, self._clock)
        account.update(tenant)
        return account

    def _counts(self) -> Counts:
        for name, account in self._accounts.items():
            yield name, account.running, self._waiting(name)

    def _waiting(self, tenant: str) -> int:
        return sum(places.waiting(tenant) for places in self._places.values())


class Caller:
    """One call of a tenant, from its admission to its end.

    Attributes:
        tenant: whose it is.
        arrived: ``time.monotonic`` of its admission.
    """

    def __init__(self, gate: Gate, tenant: Tenant, reservation: TokenReservation) -> None:
        self.tenant = tenant
        self.arrived = time.monotonic()
        self._gate = gate
        self._reservation = reservation

    def default_max_tokens(self, default: int) -> int:
        """The length of an answer when the request does not say."""
        most = self.tenant.limits.max_tokens
        return default if most is None else min(default, most)

    def check_lengths(self, prompt: Prompt, max_tokens: int) -> None:
        """Refuse what the tenant may never send.

        Raises:
            InvalidRequest: naming the prompt or max_tokens.
        """
        limits, problems = self.tenant.limits, {}
        prompt_tokens = len(prompt.token_ids)
        if limits.max_prompt_tokens is not None and prompt_tokens > limits.max_prompt_tokens:
            problems[prompt.name] = (
                f"{prompt_tokens} tokens found, allowed for this key are at most {limits.max_prompt_tokens}"
            )
        if limits.max_tokens is not None and max_tokens > limits.max_tokens:
            problems["max_tokens"] = f"{max_tokens} found, allowed for this key are at most {limits.max_tokens}"
        if problems:
            raise InvalidRequest(problems)

    def reserve(self, tokens: int) -> None:
        """Take the most tokens that the call can need from its tenant's minute; what it does not spend returns.

        Raises:
            InvalidRequest: the tenant never has as many.
            ServiceError: RESOURCE_EXHAUSTED: not now.
        """
        self._reservation.reserve(tokens)

    @contextlib.asynccontextmanager
    async def place(self, model: str, demand: Demand) -> AsyncIterator[Place]:
        """Hold a place at the workers of a model while the block runs, which says what it has taken; that is charged.

        Raises:
            ServiceError: RESOURCE_EXHAUSTED: too many wait already; DEADLINE_EXCEEDED while waiting.
        """
        async with self._gate.places(model).taken_by(self.tenant, demand) as place:
            self._gate.metrics.placed(self.tenant.name, place.waited)
            try:
                yield place
            finally:
                self._reservation.spend(place.spent)
                self._gate.metrics.charged(self.tenant.name, place.prompt_tokens, place.generated_tokens)


def _unauthenticated(*, given: bool) -> ServiceError:
    if given:
        message, reason = "the API key is nobody's", "INVALID_API_KEY"
    else:
        message = "an API key is needed, as authorization: Bearer KEY, x-api-key: KEY or api-key: KEY"
        reason = "MISSING_API_KEY"
    return ServiceError(grpc.StatusCode.UNAUTHENTICATED, message, reason=reason)
