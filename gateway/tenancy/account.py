"""What one tenant has taken from its limits, and the calls that give it back. Pure but for the clock it is given."""

import contextlib
import math
from collections.abc import Callable, Iterator

import grpc

from gateway.errors import InvalidRequest
from gateway.tenancy.tenant import Tenant
from gateway.tenancy.token_bucket import TokenBucket
from service.errors import ServiceError

# When a call under way ends cannot be known; this is how soon clients may look again.
CONCURRENCY_RETRY_SECONDS = 1.0

Clock = Callable[[], float]


def limited(tenant: str, what: str, reason: str, retry_seconds: float) -> ServiceError:
    """RESOURCE_EXHAUSTED, saying when the same request can be served: rounded up, for a client that comes a
    millisecond too early comes in vain."""
    seconds = math.ceil(retry_seconds * 1000) / 1000
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"{what}; try again in {seconds:g} s",
        reason=reason,
        metadata={"tenant": tenant},
        retry_seconds=seconds,
    )


class Account:
    """One tenant's buckets and calls. ``clock`` gives seconds and does not go back.

    Attributes:
        tenant: whose it is, as the file last said.
        running: its calls under way.
    """

    def __init__(self, tenant: Tenant, clock: Clock) -> None:
        self.tenant = tenant
        self.running = 0
        self._clock = clock
        limits, now = tenant.limits, clock()
        self._requests = TokenBucket(limits.requests_per_second, limits.burst, now)
        self._tokens = TokenBucket(limits.tokens_per_minute / 60, limits.tokens_per_minute, now)

    @property
    def requests_left(self) -> float:
        """Calls that can come now."""
        return self._requests.level(self._clock())

    @property
    def tokens_left(self) -> float:
        """Tokens that can be reserved now."""
        return self._tokens.level(self._clock())

    def update(self, tenant: Tenant) -> None:
        """Take new limits; what was taken under the old ones stays taken."""
        if tenant is self.tenant:
            return
        self.tenant = tenant
        limits, now = tenant.limits, self._clock()
        self._requests.resize(limits.requests_per_second, limits.burst, now)
        self._tokens.resize(limits.tokens_per_minute / 60, limits.tokens_per_minute, now)

    @contextlib.contextmanager
    def call(self) -> Iterator["TokenReservation"]:
        """One call: counted while the block runs; at its end the tokens that it reserved and did not spend return.

        Raises:
            ServiceError: RESOURCE_EXHAUSTED, RATE_LIMITED or TOO_MANY_REQUESTS, and nothing is taken.
        """
        limits, now = self.tenant.limits, self._clock()
        if self.running >= limits.concurrent_requests:
            allowed = f"allowed are {limits.concurrent_requests:g}"
            what = f"{self.running} requests of this key's tenant are under way, {allowed}"
            raise limited(self.tenant.name, what, "TOO_MANY_REQUESTS", CONCURRENCY_RETRY_SECONDS)
        wait = self._requests.wait(1, now)
        if wait > 0:
            what = f"more than {limits.requests_per_second:g} requests per second"
            raise limited(self.tenant.name, what, "RATE_LIMITED", wait)
        self._requests.take(1, now)
        self.running += 1
        reservation = TokenReservation(self)
        try:
            yield reservation
        finally:
            self.running -= 1
            self._settle(reservation)

    def reserve(self, tokens: int) -> None:
        """Take tokens from the minute's.

        Raises:
            InvalidRequest: the tenant never has as many.
            ServiceError: RESOURCE_EXHAUSTED, TOKENS_LIMITED: not now.
        """
        now, allowed = self._clock(), self.tenant.limits.tokens_per_minute
        wait = self._tokens.wait(tokens, now)
        if math.isinf(wait):
            found = f"a request of up to {tokens} tokens with its answers found"
            raise InvalidRequest({"max_tokens": f"{found}, allowed for this key are {allowed:g} per minute"})
        if wait > 0:
            what = f"a request of up to {tokens} tokens, of {allowed:g} per minute {self.tokens_left:.0f} are left"
            raise limited(self.tenant.name, what, "TOKENS_LIMITED", wait)
        self._tokens.take(tokens, now)

    def _settle(self, reservation: "TokenReservation") -> None:
        unused = reservation.reserved - reservation.spent
        if unused > 0:
            self._tokens.give_back(unused, self._clock())


class TokenReservation:
    """The tokens of one call.

    Attributes:
        reserved: taken from the minute's when the call was admitted.
        spent: used of them.
    """

    __slots__ = ("_account", "reserved", "spent")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.reserved = 0
        self.spent = 0

    def reserve(self, tokens: int) -> None:
        """Reserve more; raises as ``Account.reserve``."""
        self._account.reserve(tokens)
        self.reserved += tokens

    def spend(self, tokens: int) -> None:
        """Tokens that were computed."""
        self.spent = min(self.spent + tokens, self.reserved)
