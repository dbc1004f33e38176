"""What a tenant took is given back, however its calls end: against a model that recounts all of it."""

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.tenancy.account import Account
from gateway.tenancy.tenant import Limits, Tenant
from service.errors import ServiceError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tenant(**limits: Any) -> Tenant:
    return Tenant("t", "tenant/t", limits=Limits(**limits))


def refusal(account: Account) -> ServiceError:
    with pytest.raises(ServiceError) as caught, account.call():
        raise AssertionError
    return caught.value


@pytest.mark.unit
def test_a_refusal_says_when_and_takes_nothing() -> None:
    clock = Clock()
    account = Account(tenant(requests_per_second=3, burst=1, concurrent_requests=1), clock)
    with account.call():
        busy = refusal(account)
        assert (busy.code, busy.reason, busy.retry_seconds) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "TOO_MANY_REQUESTS",
            1.0,
        )
    # One per third of a second, told in milliseconds, rounded up.
    early = refusal(account)
    assert (early.reason, early.retry_seconds, account.running) == ("RATE_LIMITED", 0.334, 0)
    clock.now += 0.333
    refusal(account)
    clock.now = 0.334
    with account.call():
        assert account.requests_left == 0


@pytest.mark.unit
def test_tokens_that_were_not_spent_return() -> None:
    clock = Clock()
    account = Account(tenant(tokens_per_minute=600), clock)
    with account.call() as reservation:
        reservation.reserve(500)
        assert account.tokens_left == 100
        reservation.spend(120)
    assert account.tokens_left == 480
    with account.call() as reservation:
        with pytest.raises(ServiceError) as caught:
            reservation.reserve(481)
        # One token is missing, and ten come per second.
        assert (caught.value.reason, caught.value.retry_seconds) == ("TOKENS_LIMITED", 0.1)
        with pytest.raises(InvalidRequest, match="601 tokens"):
            reservation.reserve(601)
    assert account.tokens_left == 480
    # More than was reserved is never charged.
    with account.call() as reservation:
        reservation.reserve(80)
        reservation.spend(100)
    assert account.tokens_left == 400


@pytest.mark.unit
def test_new_limits_count_what_was_taken_under_the_old_ones() -> None:
    account = Account(tenant(tokens_per_minute=600), Clock())
    with account.call() as reservation:
        reservation.reserve(600)
        account.update(tenant(tokens_per_minute=6000))
        assert account.tokens_left == 5400
    assert account.tokens_left == 6000
    account.update(tenant())
    assert account.tokens_left == math.inf


class Call:
    """A call under way."""

    def __init__(self, account: Account) -> None:
        self._context = account.call()
        self.reservation = self._context.__enter__()

    def end(self, how: str) -> None:
        error = {"done": None, "failed": ValueError(), "cancelled": asyncio.CancelledError()}[how]
        with contextlib.suppress(ValueError, asyncio.CancelledError):
            self._context.__exit__(type(error) if error else None, error, None)


def attempt(function: Callable[[], Any]) -> tuple[Any, Any]:
    """What a function returns, and what it raises."""
    try:
        return function(), None
    except (ServiceError, InvalidRequest) as error:
        return None, error


RATE, BURST, MINUTE, AT_ONCE = 2, 5, 240, 4

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 16)),  # quarters of a second
        st.tuples(st.just("call"), st.integers(1, 300)),  # tokens to reserve
        st.tuples(st.just("spend"), st.integers(1, 100)),
        st.tuples(st.sampled_from(["done", "failed", "cancelled"]), st.integers(0, 9)),
    ),
    max_size=80,
)


@pytest.mark.property
@given(STEPS)
@settings(deadline=None)
def test_an_account_equals_a_recount(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    limits = {"requests_per_second": RATE, "burst": BURST, "tokens_per_minute": MINUTE, "concurrent_requests": AT_ONCE}
    account = Account(tenant(**limits), clock)
    requests, tokens = Fraction(BURST), Fraction(MINUTE)
    live: list[Any] = []

    def end(number: int, how: str) -> None:
        nonlocal tokens
        call = live.pop(number % len(live))
        tokens = min(Fraction(MINUTE), tokens + call.reservation.reserved - call.reservation.spent)
        call.end(how)

    for what, number in steps:
        if what == "wait":
            clock.now += number / 4
            requests = min(Fraction(BURST), requests + Fraction(number, 4) * RATE)
            tokens = min(Fraction(MINUTE), tokens + Fraction(number, 4) * MINUTE / 60)
        elif what == "call":
            call, refused = attempt(lambda: Call(account))
            if len(live) == AT_ONCE or requests < 1:
                assert refused.reason == ("TOO_MANY_REQUESTS" if len(live) == AT_ONCE else "RATE_LIMITED")
                continue
            requests -= 1
            live.append(call)
            _, refused = attempt(functools.partial(call.reservation.reserve, number))
            if number > MINUTE:
                assert isinstance(refused, InvalidRequest)
            elif number > tokens:
                assert refused.reason == "TOKENS_LIMITED"
                assert refused.retry_seconds == pytest.approx(float((number - tokens) / 4), abs=0.001)
            else:
                assert refused is None
                tokens -= number
        elif what == "spend" and live:
            live[number % len(live)].reservation.spend(number)
        elif live:
            end(number, what)
        assert account.running == len(live)
        assert account.requests_left == pytest.approx(float(requests))
        assert account.tokens_left == pytest.approx(float(tokens))
    while live:
        end(0, "cancelled")
    clock.now += 60
    assert (account.running, account.requests_left, account.tokens_left) == (0, BURST, MINUTE)
