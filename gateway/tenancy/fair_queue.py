"""Start-time fair queueing between tenants, with priorities inside a tenant and ageing in both. Pure.

A request's cost is the most tokens it can take, until it ends: then it is what it took. Virtual time v counts cost per
weight. A tenant that waits has a start tag S, and the next request is one of the tenant with the smallest:

    the tenant begins to wait     S = max(v, F)        F: its finish tag, 0 at first
    it is served, cost c          F = S + c / weight, and S = F if more of it waits
    anybody is served             v = the smallest S of all that waited
    a request took d less         F = F - d / weight, and S = max(v, S - d / weight) if more of it waits

So no tag of one that waits is below v, and:

* Fairness. While two tenants wait, what they are served per weight differs by at most one largest request of each, as
  long as none takes less than its cost or goes by its age.
* Isolation. A tenant that has taken nothing lately (F <= v) is preceded by at most one request of every other tenant,
  however many of theirs wait, and whatever they took less.
* Ageing between tenants. A tenant that has waited ``ageing_seconds`` since it was last served goes next, whatever its
  tag; of several, the one that has waited longest.
* Ageing inside a tenant. Its requests go by (priority, arrival), but one that has waited ``ageing_seconds`` goes before
  all that came later. So nobody is overtaken by a request that came more than ``ageing_seconds`` after it.

Cost is charged when a request is served, so one that leaves before has changed nothing. Tags of equal value go by who
has waited longer.
"""

import collections
import heapq
import itertools
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue.

    Attributes:
        tenant: its tenant's name.
        weight: the tenant's share.
        cost: tokens that it can take.
        priority: smaller is served first, among the tenant's own.
        places: how many it takes of those that the queue is for.
        arrived: seconds on the caller's clock.
        left: it waits no more.
    """

    tenant: str
    weight: float
    cost: float
    priority: int
    places: int
    arrived: float
    left: bool = False


@dataclass(slots=True)
class _Flow:
    """One tenant's requests, in both of the orders in which they may be served, and its tags."""

    start: float = 0.0
    finish: float = 0.0
    since: float = 0.0
    """When it began to wait, or was last served."""

    turn: int = 0
    """The same as a number, of which no two are equal."""

    count: int = 0
    by_arrival: "collections.deque[Waiting]" = field(default_factory=collections.deque)
    by_priority: list[tuple[int, int, Waiting]] = field(default_factory=list)

    def head(self, now: float, ageing_seconds: float) -> Waiting:
        """The next request; there is one."""
        while self.by_arrival[0].left:
            self.by_arrival.popleft()
        while self.by_priority[0][2].left:
            heapq.heappop(self.by_priority)
        oldest = self.by_arrival[0]
        return oldest if now - oldest.arrived >= ageing_seconds else self.by_priority[0][2]


class FairQueue:
    """Requests that wait, of all tenants.

    Args:
        ageing_seconds: the bound above.
    """

    def __init__(self, ageing_seconds: float) -> None:
        self._ageing_seconds = ageing_seconds
        self._flows: dict[str, _Flow] = {}
        self._virtual = 0.0
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def waiting(self, tenant: str) -> int:
        """How many requests of a tenant wait."""
        flow = self._flows.get(tenant)
        return 0 if flow is None else flow.count

    def push(self, request: Waiting, now: float) -> None:
        """Let a request wait."""
        flow = self._flows.setdefault(request.tenant, _Flow())
        if flow.count == 0:
            flow.start = max(self._virtual, flow.finish)
            flow.since, flow.turn = now, next(self._numbers)
        flow.by_arrival.append(request)
        heapq.heappush(flow.by_priority, (request.priority, next(self._numbers), request))
        flow.count += 1
        self._count += 1

    def peek(self, now: float) -> Waiting | None:
        """The request that is served next; None when nobody waits."""
        flow = self._next(now)
        return None if flow is None else flow.head(now, self._ageing_seconds)

    def pop(self, now: float) -> Waiting | None:
        """Take the request that is served next, and charge its tenant."""
        flow = self._next(now)
        if flow is None:
            return None
        request = flow.head(now, self._ageing_seconds)
        self._virtual = min(other.start for other in self._flows.values() if other.count)
        flow.start = flow.finish = flow.start + request.cost / request.weight
        flow.since, flow.turn = now, next(self._numbers)
        self._leave(flow, request)
        return request

    def remove(self, request: Waiting) -> None:
        """Take a request out that waits no more, without a trace."""
        self._leave(self._flows[request.tenant], request)

    def settle(self, request: Waiting, spent: float) -> None:
        """A request that was served has ended: charge what it took instead of what it could."""
        flow = self._flows[request.tenant]
        less = max(0.0, request.cost - spent) / request.weight
        flow.finish -= less
        if flow.count:
            flow.start = flow.finish = max(self._virtual, flow.finish)

    def forget(self) -> None:
        """Nobody waits and nothing runs: what tenants took before weighs no more."""
        if not self._count:
            self._flows.clear()
            self._virtual = 0.0

    def _leave(self, flow: _Flow, request: Waiting) -> None:
        request.left = True
        flow.count -= 1
        self._count -= 1
        if flow.count == 0:
            flow.by_arrival.clear()
            flow.by_priority.clear()
        elif len(flow.by_arrival) > 2 * flow.count:
            flow.by_arrival = collections.deque(one for one in flow.by_arrival if not one.left)
        if len(flow.by_priority) > 2 * flow.count:
            flow.by_priority = [entry for entry in flow.by_priority if not entry[2].left]
            heapq.heapify(flow.by_priority)

    def _next(self, now: float) -> _Flow | None:
        """The tenant that is served next."""
        waiting = [flow for flow in self._flows.values() if flow.count]
        if not waiting:
            return None
        oldest = min(waiting, key=lambda flow: flow.turn)
        if now - oldest.since >= self._ageing_seconds:
            return oldest
        return min(waiting, key=lambda flow: (flow.start, flow.turn))
