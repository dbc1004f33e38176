"""Places at the workers: who gets them, and that they come back whatever happens to those who wait or hold them."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tenancy.places import Demand, Place, Places
from gateway.tenancy.tenant import Limits, Tenant
from service.errors import ServiceError

A, B = Tenant("a", "tenant/a"), Tenant("b", "tenant/b")


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


@dataclass
class Holder:
    """A request that holds its places until told."""

    places: Places
    tenant: Tenant
    demand: Demand
    end: asyncio.Event = field(default_factory=asyncio.Event)
    place: Place | None = None
    task: "asyncio.Task[None] | None" = None

    def start(self) -> "Holder":
        self.task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        async with self.places.taken_by(self.tenant, self.demand) as self.place:
            await self.end.wait()

    @property
    def holds(self) -> bool:
        return self.place is not None and self.task is not None and not self.task.done()


def demand(places: int = 1, cost: int = 10, patience: float | None = None) -> Demand:
    return Demand(cost, places, 0, patience)


@pytest.mark.unit
async def test_free_places_are_taken_without_waiting() -> None:
    places = Places(lambda: 2, 30, 10)
    async with places.taken_by(A, demand()) as first, places.taken_by(B, demand()) as second:
        assert (first.waited, second.waited, places.taken) == (0.0, 0.0, 2)
    assert places.taken == 0


@pytest.mark.unit
async def test_samples_take_a_place_each_and_nobody_passes_the_next() -> None:
    places = Places(lambda: 6, 30, 10)
    # At most half of the places, however many samples there are.
    many, two = Holder(places, A, demand(100)).start(), Holder(places, A, demand(2)).start()
    await settle()
    assert (places.taken, many.place.places, two.place.places) == (5, 3, 2)
    pair, one = Holder(places, A, demand(2)).start(), Holder(places, A, demand(1)).start()
    await settle()
    # One is free, and the next one needs two: the small one behind it waits with it.
    assert (places.taken, pair.holds, one.holds) == (5, False, False)
    two.end.set()
    await settle()
    assert (places.taken, pair.holds, one.holds) == (6, True, True)
    for holder in (many, pair, one):
        holder.end.set()
    await settle()
    assert places.taken == 0


@pytest.mark.unit
async def test_more_room_serves_those_who_wait() -> None:
    room = 1
    places = Places(lambda: room, 30, 10)
    holders = [Holder(places, A, demand()).start() for _ in range(3)]
    await settle()
    room = 3
    places.grant()
    await settle()
    assert all(holder.holds for holder in holders)
    for holder in holders:
        holder.end.set()


@pytest.mark.unit
async def test_a_place_that_comes_together_with_a_cancel_is_not_lost() -> None:
    places = Places(lambda: 1, 30, 10)
    first = Holder(places, A, demand()).start()
    await settle()
    second, third = Holder(places, A, demand()).start(), Holder(places, A, demand()).start()
    await settle()
    first.end.set()
    # The first gives its place to the second in the very turn in which the second is cancelled.
    await asyncio.sleep(0)
    assert second.task is not None
    second.task.cancel()
    await settle()
    assert (second.task.cancelled(), third.holds, places.taken) == (True, True, 1)
    third.end.set()


@pytest.mark.unit
async def test_a_deadline_ends_the_waiting() -> None:
    places = Places(lambda: 1, 30, 10)
    async with places.taken_by(A, demand()):
        with pytest.raises(ServiceError) as caught:
            async with places.taken_by(B, demand(patience=0.0)):
                raise AssertionError
        assert (caught.value.code, places.waiting("b")) == (grpc.StatusCode.DEADLINE_EXCEEDED, 0)


@pytest.mark.unit
async def test_a_full_queue_is_one_tenants_own() -> None:
    places = Places(lambda: 1, 30, max_queued=2)
    holders = [Holder(places, A, demand()).start() for _ in range(3)]
    await settle()
    with pytest.raises(ServiceError) as caught:
        async with places.taken_by(A, demand()):
            raise AssertionError
    assert (caught.value.reason, caught.value.retry_seconds) == ("QUEUE_FULL", 1.0)
    other = Holder(places, B, demand()).start()
    few = Holder(places, Tenant("c", "tenant/c", limits=Limits(queued_requests=0)), demand()).start()
    await settle()
    assert places.waiting("b") == 1
    assert few.task is not None
    assert isinstance(few.task.exception(), ServiceError)
    for holder in (*holders, other):
        holder.end.set()
    await settle()
    assert (places.taken, places.waiting("a"), places.waiting("b")) == (0, 0, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from("ab"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.just(""), st.integers(0, 20)),
        st.tuples(st.just("cancel"), st.just(""), st.integers(0, 20)),
        st.tuples(st.just("room"), st.just(""), st.integers(0, 6)),
        st.tuples(st.just("turn"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.property
@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_places_are_whole_again_after_any_interleaving(steps: list[tuple[str, str, int]]) -> None:
    async def run() -> None:
        room = 3
        places = Places(lambda: room, 30, 1000)
        holders: list[Holder] = []

        def check() -> None:
            held = sum(holder.place.places for holder in holders if holder.holds)
            assert places.taken == held
            # Work is not held back: what is next does not fit, or nobody waits.
            waiting = [holder for holder in holders if holder.task and not holder.task.done() and not holder.holds]
            assert len(waiting) == places.waiting("a") + places.waiting("b")
            if waiting:
                assert held + min(max(holder.demand.places for holder in waiting), max(1, room // 2)) > room
            # There were never more than 6 places.
            assert held <= 6

        for what, name, number in steps:
            live = [holder for holder in holders if holder.task and not holder.task.done()]
            if what == "arrive":
                holders.append(Holder(places, A if name == "a" else B, demand(number, cost=number)).start())
            elif what == "end" and live:
                live[number % len(live)].end.set()
            elif what == "cancel" and live:
                task = live[number % len(live)].task
                assert task is not None
                task.cancel()
            elif what == "room":
                room = number
                places.grant()
            else:
                # Steps in between run in one turn of the loop, so that ends, cancels and grants meet.
                await settle()
                check()
        await settle()
        check()
        for holder in holders:
            holder.end.set()
        room = 100
        places.grant()
        for holder in holders:
            assert holder.task is not None
            with contextlib.suppress(asyncio.CancelledError):
                await holder.task
        assert (places.taken, places.waiting("a"), places.waiting("b")) == (0, 0, 0)

    asyncio.run(run())
