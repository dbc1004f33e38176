"""A bucket against a model that recounts every event with exact numbers."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tenancy.token_bucket import TokenBucket


@pytest.mark.unit
def test_a_bucket_fills_at_its_rate_and_says_when() -> None:
    bucket = TokenBucket(rate=2, burst=10, now=100)
    bucket.take(10, 100)
    # 6 of 2 per second are there after 3 s; one second has passed.
    assert (bucket.level(101), bucket.wait(6, 101), bucket.wait(2, 101)) == (2, 2.0, 0.0)
    assert bucket.wait(10.5, 101) == math.inf
    assert bucket.level(1000) == 10
    # A clock that stands still, or an older reading, gives nothing.
    bucket.take(4, 1000)
    assert bucket.level(999) == 6


@pytest.mark.unit
def test_an_endless_bucket_counts_nothing() -> None:
    bucket = TokenBucket(math.inf, math.inf, 0)
    bucket.take(1e300, 0)
    bucket.give_back(5, 0)
    assert (bucket.level(0), bucket.wait(1e300, 0)) == (math.inf, 0)
    # A limit that comes later starts full.
    bucket.resize(1, 3, 10)
    assert bucket.level(10) == 3


@pytest.mark.unit
def test_what_was_taken_stays_taken_when_the_limits_change() -> None:
    bucket = TokenBucket(1, 10, 0)
    bucket.take(4, 0)
    bucket.resize(1, 100, 0)
    assert bucket.level(0) == 96
    bucket.resize(1, 2, 0)
    # 4 of 2 are taken: 2 s until it is empty, 3 s until there is one.
    assert bucket.wait(1, 0) == 3


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 40),  # quarters of a second since the last one
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 24)),
            st.tuples(st.just("give_back"), st.integers(1, 24)),
        ),
    ),
    max_size=60,
)


@pytest.mark.property
@given(st.integers(1, 8), st.integers(1, 20), EVENTS)
@settings(deadline=None)
def test_a_bucket_equals_a_recount(rate: int, burst: int, events: list[tuple[int, tuple[str, int]]]) -> None:
    bucket = TokenBucket(rate, burst, 0)
    level, now = Fraction(burst), Fraction(0)
    for quarters, (what, amount) in events:
        now += Fraction(quarters, 4)
        level = min(Fraction(burst), level + Fraction(quarters, 4) * rate)
        wait = bucket.wait(amount, float(now))
        if amount > burst:
            assert wait == math.inf
        else:
            assert wait == pytest.approx(float(max(Fraction(0), (amount - level) / rate)))
        if what == "give_back":
            bucket.give_back(amount, float(now))
            level = min(Fraction(burst), level + amount)
        elif level >= amount:
            # Quarters and small integers are exact in binary.
            assert wait == 0
            bucket.take(amount, float(now))
            level -= amount
        assert bucket.level(float(now)) == pytest.approx(float(level))
