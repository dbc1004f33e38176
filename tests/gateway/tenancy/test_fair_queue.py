"""Start-time fair queueing: against a simulation in plain floats, and by the bounds that its module promises."""

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tenancy.fair_queue import FairQueue, Waiting

NEVER = 1e9


def request(tenant: str, cost: float = 10, *, weight: float = 1, priority: int = 0, arrived: float = 0) -> Waiting:
    return Waiting(tenant, weight, cost, priority, 1, arrived)


def order(queue: FairQueue, now: float = 0) -> list[Waiting]:
    served = []
    while (one := queue.pop(now)) is not None:
        served.append(one)
    return served


@pytest.mark.unit
def test_a_light_tenant_goes_before_the_rest_of_a_flood() -> None:
    queue = FairQueue(NEVER)
    for _ in range(100):
        queue.push(request("flood"), 0)
    first = queue.pop(0)
    queue.push(request("light"), 1)
    # v = 0, so the light one's tag is 0 and the flood's 10.
    assert first is not None
    assert (first.tenant, queue.pop(1).tenant, len(queue)) == ("flood", "light", 99)  # type: ignore[union-attr]


@pytest.mark.unit
def test_tokens_and_not_requests_are_shared_by_weight() -> None:
    queue = FairQueue(NEVER)
    for _ in range(40):
        queue.push(request("long", cost=100, weight=1), 0)
        queue.push(request("short", cost=10, weight=2), 0)
    served = [queue.pop(0) for _ in range(42)]
    tokens = {name: sum(one.cost for one in served if one and one.tenant == name) for name in ("long", "short")}
    # Per weight they differ by at most a largest request of each: 100 / 1 + 10 / 2.
    assert abs(tokens["long"] / 1 - tokens["short"] / 2) <= 105
    # 42 requests: 2 long ones and 40 short ones carry 200 and 400 tokens.
    assert tokens == {"long": 200, "short": 400}


@pytest.mark.unit
def test_priorities_order_a_tenants_own_and_nobody_elses() -> None:
    queue = FairQueue(NEVER)
    for priority in (5, 0, -5):
        queue.push(request("a", priority=priority), 0)
        queue.push(request("b", priority=100), 0)
    served = order(queue)
    assert [one.priority for one in served if one.tenant == "a"] == [-5, 0, 5]
    assert [one.tenant for one in served[:2]] == ["a", "b"]


@pytest.mark.unit
def test_an_aged_request_goes_before_its_tenants_later_ones() -> None:
    queue = FairQueue(ageing_seconds=10)
    queue.push(request("a", priority=9, arrived=0), 0)
    queue.push(request("a", priority=0, arrived=5), 5)
    assert queue.peek(9).priority == 0  # type: ignore[union-attr]
    assert queue.peek(10).priority == 9  # type: ignore[union-attr]


@pytest.mark.unit
def test_a_tenant_of_little_weight_is_served_by_its_age() -> None:
    queue = FairQueue(ageing_seconds=10)
    for _ in range(2):
        queue.push(request("small", cost=100, weight=0.001), 0)
    assert queue.pop(0).tenant == "small"  # type: ignore[union-attr]
    # Its next tag is 100,000: by tags 10,000 requests of the others would come first.
    for second in range(10):
        queue.push(request("big", arrived=second), second)
        assert queue.pop(second).tenant == "big"  # type: ignore[union-attr]
    queue.push(request("big", arrived=10), 10)
    assert queue.pop(10).tenant == "small"  # type: ignore[union-attr]


@pytest.mark.unit
def test_one_that_leaves_has_changed_nothing() -> None:
    with_it, without = FairQueue(NEVER), FairQueue(NEVER)
    for queue in (with_it, without):
        queue.push(request("a"), 0)
        queue.push(request("b"), 0)
    gone = request("a", cost=1e6, priority=-1)
    with_it.push(gone, 0)
    with_it.remove(gone)
    alone = request("c", cost=1e6)
    with_it.push(alone, 0)
    with_it.remove(alone)
    for queue in (with_it, without):
        for tenant in "abc":
            queue.push(request(tenant), 0)
    assert [one.tenant for one in order(with_it)] == [one.tenant for one in order(without)]


@pytest.mark.unit
def test_what_a_request_took_less_is_given_back() -> None:
    queue = FairQueue(NEVER)
    for tenant in ("careful", "careless"):
        for _ in range(4):
            # Both take 10 tokens, of which the careless one does not know beforehand.
            queue.push(request(tenant, cost=10 if tenant == "careful" else 1000), 0)
    tenants = []
    while (one := queue.pop(0)) is not None:
        tenants.append(one.tenant)
        queue.settle(one, 10)
    # Tags 0 0, 10 10, 20 20, 30 30: by its estimates the careless one's second would have come last but two.
    assert [sorted(tenants[turn : turn + 2]) for turn in range(0, 8, 2)] == [["careful", "careless"]] * 4


@pytest.mark.unit
def test_an_idle_time_is_forgotten() -> None:
    queue = FairQueue(NEVER)
    queue.push(request("a", cost=1e6), 0)
    queue.pop(0)
    queue.forget()
    queue.push(request("a"), 1)
    queue.push(request("b"), 1)
    assert [one.tenant for one in order(queue)] == ["a", "b"]


@pytest.mark.unit
def test_many_that_leave_take_no_memory() -> None:
    queue = FairQueue(NEVER)
    stays = request("a")
    queue.push(stays, 0)
    for _ in range(10_000):
        gone = request("a")
        queue.push(gone, 0)
        queue.remove(gone)
    flow = queue._flows["a"]
    assert max(len(flow.by_arrival), len(flow.by_priority)) <= 3
    assert queue.pop(0) is stays


# A naive model of the same rules: lists that are searched whole, tags in a dictionary.


@dataclass
class Naive:
    ageing: float
    waiting: list[Waiting] = field(default_factory=list)
    running: list[Waiting] = field(default_factory=list)
    start: dict[str, float] = field(default_factory=dict)
    finish: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    virtual: float = 0.0

    def of(self, tenant: str) -> list[Waiting]:
        return [one for one in self.waiting if one.tenant == tenant]

    def push(self, one: Waiting, now: float) -> None:
        if not self.of(one.tenant):
            self.start[one.tenant] = max(self.virtual, self.finish.get(one.tenant, 0.0))
            self.began(one.tenant, now)
        self.waiting.append(one)

    def began(self, tenant: str, now: float) -> None:
        self.since[tenant] = now
        self.turns[tenant] = max(self.turns.values(), default=0) + 1

    def pop(self, now: float) -> Waiting | None:
        tenants = sorted({one.tenant for one in self.waiting})
        if not tenants:
            return None
        aged = [name for name in tenants if now - self.since[name] >= self.ageing]
        by_age, by_tag = (lambda name: self.turns[name]), (lambda name: (self.start[name], self.turns[name]))
        tenant = min(aged, key=by_age) if aged else min(tenants, key=by_tag)
        self.virtual = min(self.start[name] for name in tenants)
        own = self.of(tenant)
        aged_own = [one for one in own if now - one.arrived >= self.ageing]
        served = aged_own[0] if aged_own else min(own, key=lambda one: one.priority)
        self.finish[tenant] = self.start[tenant] = self.start[tenant] + served.cost / served.weight
        self.running.append(served)
        self.began(tenant, now)
        self.waiting.remove(served)
        return served

    def settle(self, one: Waiting, spent: float) -> None:
        self.running.remove(one)
        self.finish[one.tenant] -= (one.cost - spent) / one.weight
        if self.of(one.tenant):
            self.start[one.tenant] = self.finish[one.tenant] = max(self.virtual, self.finish[one.tenant])


WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.25, "d": 8.0}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from(sorted(WEIGHTS)), st.integers(1, 64), st.integers(-2, 2)),
        st.tuples(st.just("pop"), st.just(""), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["leave", "end"]), st.just(""), st.integers(0, 99), st.just(0)),
    ),
    max_size=120,
)


@pytest.mark.property
@given(STEPS, st.sampled_from([3.0, 20.0, NEVER]))
@settings(max_examples=300, deadline=None)
def test_the_order_is_the_naive_models(steps: list[tuple[str, str, int, int]], ageing: float) -> None:
    queue, naive = FairQueue(ageing), Naive(ageing)
    for second, (what, tenant, number, priority) in enumerate(steps):
        now = float(second)
        if what == "push":
            one = request(tenant, number, weight=WEIGHTS[tenant], priority=priority, arrived=now)
            queue.push(one, now)
            naive.push(one, now)
        elif what == "leave" and naive.waiting:
            one = naive.waiting.pop(number % len(naive.waiting))
            queue.remove(one)
        elif what == "end" and naive.running:
            one = naive.running[number % len(naive.running)]
            # An eighth of the cost at a time: exact in binary, as the weights are.
            spent = one.cost * (number % 9) / 8
            queue.settle(one, spent)
            naive.settle(one, spent)
        elif what == "pop":
            expected = naive.pop(now)
            assert queue.peek(now) is expected
            assert queue.pop(now) is expected
        assert len(queue) == len(naive.waiting)
        for name in WEIGHTS:
            assert queue.waiting(name) == len(naive.of(name))


@pytest.mark.property
@given(
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 1000), min_size=25, max_size=25), min_size=2),
    st.integers(0, 25),
)
@settings(deadline=None)
def test_tenants_that_wait_are_served_alike_per_weight(costs: dict[str, list[int]], pops: int) -> None:
    queue = FairQueue(NEVER)
    for tenant, sizes in costs.items():
        for size in sizes:
            queue.push(request(tenant, size, weight=WEIGHTS[tenant]), 0)
    served = dict.fromkeys(costs, 0.0)
    # Up to 25 of 25 each: all wait to the end.
    for _ in range(pops):
        one = queue.pop(0)
        assert one is not None
        served[one.tenant] += one.cost / WEIGHTS[one.tenant]
    largest = {tenant: max(sizes) / WEIGHTS[tenant] for tenant, sizes in costs.items()}
    for one, other in itertools.combinations(costs, 2):
        assert abs(served[one] - served[other]) <= largest[one] + largest[other]


FLOODS = st.lists(
    st.tuples(st.sampled_from(["b", "c", "d"]), st.integers(1, 1000), st.integers(-3, 3)), min_size=1, max_size=60
)


@pytest.mark.property
@given(FLOODS, st.integers(0, 40), st.integers(1, 1000), st.sampled_from([5.0, 30.0, NEVER]))
@settings(deadline=None)
def test_a_light_request_is_preceded_by_at_most_one_of_every_other_tenant(
    flood: list[tuple[str, int, int]], served_before: int, cost: int, ageing: float
) -> None:
    queue = FairQueue(ageing)
    now = 0.0
    served: list[Waiting] = []

    def serve() -> Waiting | None:
        """The next one; the one before it ends and took nothing."""
        if served:
            queue.settle(served.pop(), 0)
        if (one := queue.pop(now)) is not None:
            served.append(one)
        return one

    def more() -> None:
        for tenant, size, priority in flood:
            queue.push(request(tenant, size, weight=WEIGHTS[tenant], priority=priority, arrived=now), now)

    more()
    for _ in range(served_before):
        now += 1
        serve()
    light = request("a", cost, arrived=now)
    queue.push(light, now)
    before = []
    while (one := serve()) is not light:
        assert one is not None
        before.append(one.tenant)
        assert len(before) == len(set(before)) <= 3
        now += 1
        more()


@pytest.mark.property
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 100_000), st.integers(-5, 5)), min_size=1, max_size=80),
    st.floats(1, 40),
)
@settings(deadline=None)
def test_nobody_is_overtaken_beyond_the_ageing_bound(arrivals: list[tuple[str, int, int]], ageing: float) -> None:
    """One is served per second, and twice as many come. Once a tenant has waited the bound since it was last served,
    at most one request of every other tenant is served before its next; and no request of it is overtaken by one of its
    own that came more than the bound later."""
    queue = FairQueue(ageing)
    since: dict[str, float] = {}
    aged_turns: dict[str, int] = {}
    waiting: list[Waiting] = []
    for second in range(2 * len(arrivals)):
        now = float(second)
        for tenant, cost, priority in arrivals[2 * second : 2 * second + 2]:
            one = request(tenant, cost, weight=WEIGHTS[tenant], priority=priority, arrived=now)
            if not any(other.tenant == tenant for other in waiting):
                since[tenant] = now
                aged_turns[tenant] = 0
            waiting.append(one)
            queue.push(one, now)
        served = queue.pop(now)
        if served is None:
            continue
        waiting.remove(served)
        for other in waiting:
            if other.tenant == served.tenant:
                assert not (served.arrived > other.arrived + ageing and now - other.arrived >= ageing)
        for tenant in {other.tenant for other in waiting} - {served.tenant}:
            if now - since[tenant] >= ageing:
                aged_turns[tenant] += 1
                assert aged_turns[tenant] <= len(WEIGHTS) - 1
        since[served.tenant] = now
        aged_turns[served.tenant] = 0
