"""Workers that come and go: by DNS names, and by announcing themselves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc
import pytest

from gateway import discovery
from gateway.fleet import Fleet
from gateway.models import ModelCache
from gateway.registry import Leases, understood
from gateway.routing import Router
from gateway.workers import Worker
from model_worker.registration import Announcer, announced_address
from octavo.gateway.v1 import gateway_pb2, registry_pb2, registry_pb2_grpc
from service import names
from service.errors import ServiceError

TOKEN = "sixteen-letters-or-more"


@pytest.mark.unit
def test_a_lease_ends_unless_it_is_renewed() -> None:
    leases = Leases(10.0)
    leases.renew("a:1", "one", 0.0)
    leases.renew("b:1", "two", 4.0)
    leases.renew("a:1", "one", 5.0)
    assert leases.alive(13.9) == ("a:1", "b:1")
    assert leases.alive(14.0) == ("a:1",)
    leases.end("a:1", "one")
    assert leases.alive(14.0) == ()


@pytest.mark.unit
def test_a_worker_that_leaves_does_not_take_its_successor_with_it() -> None:
    leases = Leases(10.0)
    leases.renew("a:1", "old", 0.0)
    leases.renew("a:1", "new", 1.0)
    leases.end("a:1", "old")
    assert leases.alive(2.0) == ("a:1",)


@pytest.mark.unit
def test_an_announced_address_without_host_is_the_callers() -> None:
    assert understood("w:50051", "ipv4:10.0.0.7:41234") == "w:50051"
    assert understood(":50051", "ipv4:10.0.0.7:41234") == "10.0.0.7:50051"
    assert understood(":50051", "ipv6:%5Bfd00::7%5D:41234") == "[fd00::7]:50051"
    assert understood("[fd00::7%eth0]:1", "ipv4:10.0.0.7:41234") == "[fd00::7%eth0]:1"
    wrong = ["", "w", "w:", "w:0", "w:65536", "w w:1", f"{'w' * 300}:1", "::1:50051", "w:\u0661", "w\0:1"]
    # What gRPC reads as something else than a host.
    wrong += ["unix:///run/w:1", "unix:w:1", "dns://8.8.8.8/w:1", "ipv4:10.0.0.7:1", "http://w:1", "w,v:1"]
    for address in wrong:
        with pytest.raises(ServiceError, match="host:port"):
            understood(address, "ipv4:10.0.0.7:41234")
    with pytest.raises(ServiceError, match="a host is needed"):
        understood(":1", "unix:")


@pytest.mark.unit
def test_a_worker_announces_where_it_listens_or_what_it_was_told() -> None:
    assert announced_address("", "10.0.0.7:50051") == "10.0.0.7:50051"
    assert announced_address("", "0.0.0.0:50051") == ":50051"
    assert announced_address("", "[::]:50051") == ":50051"
    assert announced_address("w.example:1", "0.0.0.0:50051") == "w.example:1"


@pytest.mark.unit
async def test_a_name_stands_for_all_its_addresses() -> None:
    assert "127.0.0.1:7" in await names.resolve("dns:///localhost:7")
    for wrong in ("no-such-host.invalid:7", f"{'a' * 64}.invalid:7"):
        with pytest.raises(OSError):  # noqa: PT011 what resolvers say of such a name is theirs to choose
            await names.resolve(f"dns:///{wrong}")


class Names:
    """A name service whose answers a test gives, one per question."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Collection[str] | OSError] = asyncio.Queue()
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    async def resolve(self, name: str) -> Collection[str]:
        await self.asked.put(name)
        answer = await self.answers.get()
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def tell(self, *answers: Collection[str] | OSError) -> None:
        """Answer, and return when the next question was asked."""
        for answer in answers:
            await self.answers.put(answer)
            await self.asked.get()


@contextlib.asynccontextmanager
async def follower(
    *targets: str, make: Callable[[str, str], Worker] = lambda address, _: Worker(address, ModelCache())
) -> AsyncIterator[tuple[Router, Names, list[int]]]:
    """A router, what resolves the one name among its targets, and the number of its workers whenever one changed."""
    changes: list[int] = []
    router = Router(())

    async def changed() -> None:
        changes.append(len(router.workers))

    fleet = Fleet(router, make, changed)
    said = Names()
    following = asyncio.create_task(discovery.follow(fleet, targets, 0.0, said.resolve))
    await said.asked.get()
    try:
        yield router, said, changes
    finally:
        following.cancel()
        await fleet.close()


def addresses(router: Router) -> list[str]:
    return [worker.address for worker in router.workers]


@pytest.mark.unit
async def test_addresses_of_a_name_appear_and_go() -> None:
    async with follower("fixed:1", "dns:///workers:2") as (router, said, changes):
        assert addresses(router) == ["fixed:1"]
        await said.tell({"b:2", "a:2"})
        assert addresses(router) == ["fixed:1", "a:2", "b:2"]
        kept = router.workers[1]
        await said.tell({"a:2", "c:2"})
        assert addresses(router) == ["fixed:1", "a:2", "c:2"]
        assert router.workers[1] is kept
        assert changes[-1] == 3


@pytest.mark.unit
async def test_a_name_that_cannot_be_resolved_keeps_its_workers() -> None:
    async with follower("dns:///workers:2") as (router, said, _):
        await said.tell({"a:2"}, OSError("no answer"), OSError("no answer"))
        assert addresses(router) == ["a:2"]
        await said.tell(())
        assert addresses(router) == []


@pytest.mark.unit
async def test_a_worker_that_cannot_be_called_yet_is_called_at_the_next_look() -> None:
    """While certificates are replaced, key and certificate may belong to different pairs."""
    made: list[str] = []

    def make(address: str, _: str) -> Worker:
        made.append(address)
        if made.count("a:2") == 1:
            raise OSError("x.pem and x.key are no certificate and its key in PEM")
        return Worker(address, ModelCache())

    async with follower("dns:///workers:2", make=make) as (router, said, _):
        await said.tell({"a:2"})
        assert addresses(router) == []
        await said.tell({"a:2"})
        assert addresses(router) == ["a:2"]


@pytest.mark.unit
async def test_a_worker_that_two_sources_name_stays_until_both_let_it_go() -> None:
    async with follower("a:2", "dns:///workers:2") as (router, said, _):
        await said.tell({"a:2", "b:2"})
        assert addresses(router) == ["a:2", "b:2"]
        await said.tell({"b:2"})
        assert addresses(router) == ["a:2", "b:2"]


def announcer(gateway: Any, worker: Any, token: str = TOKEN) -> Announcer:
    return Announcer([gateway.address], worker.address, "x", token)


@pytest.mark.e2e
async def test_workers_announce_themselves_leave_and_are_forgotten(start_worker: Any, start_gateway: Any) -> None:
    first, second = start_worker(), start_worker()
    gateway = start_gateway("", "--registration-token", TOKEN, "--registration-lease-seconds", "3")
    leaving, dying = announcer(gateway, first), announcer(gateway, second)
    tasks = [asyncio.create_task(one.run()) for one in (leaving, dying)]
    said: set[object] = set()

    def both_ready(event: Any) -> bool:
        said.add(event.get("message"))
        return {f"worker {one.address} is ready" for one in (first, second)} <= said

    await asyncio.to_thread(gateway.wait_for, both_ready)
    await asyncio.to_thread(gateway.wait_health, serving=True)

    tasks[0].cancel()
    await leaving.leave()
    await asyncio.to_thread(gateway.wait_for, lambda event: event.get("message") == f"worker {first.address} left")
    request = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(max_tokens=2))
    assert len(await asyncio.to_thread(lambda: list(gateway.stub.Generate(request, timeout=30)))) == 2

    tasks[1].cancel()  # the second one falls silent: its lease runs out
    await asyncio.to_thread(gateway.wait_health, serving=False)
    await dying.leave()


@pytest.mark.e2e
def test_an_announcement_needs_the_operators_token(start_gateway: Any) -> None:
    gateway = start_gateway("", "--registration-token", TOKEN)
    registry = registry_pb2_grpc.RegistryServiceStub(gateway.channel)
    request = registry_pb2.RegisterRequest(address="w:1")
    for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", TOKEN),)):
        with pytest.raises(grpc.RpcError) as refused:
            registry.Register(request, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    granted = registry.Register(
        registry_pb2.RegisterRequest(address=":1"), metadata=(("authorization", f"Bearer {TOKEN}"),)
    )
    assert (granted.address, granted.lease_ms) == ("127.0.0.1:1", 10_000)


@pytest.mark.e2e
def test_without_a_token_nobody_can_announce_himself(start_gateway: Any) -> None:
    gateway = start_gateway("127.0.0.1:1")
    with pytest.raises(grpc.RpcError) as refused:
        registry_pb2_grpc.RegistryServiceStub(gateway.channel).Register(registry_pb2.RegisterRequest(address="w:1"))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.e2e
def test_a_gateway_serves_the_workers_of_a_name(start_worker: Any, start_gateway: Any) -> None:
    worker = start_worker()
    port = worker.address.rpartition(":")[2]
    gateway = start_gateway(f"dns:///localhost:{port}")
    gateway.wait_health(serving=True)
    request = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(max_tokens=2))
    assert len(list(gateway.stub.Generate(request, timeout=30))) == 2
