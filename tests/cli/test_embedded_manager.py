"""The manager inside the worker's process: the same answers as over gRPC, and safe from several threads."""

import contextlib
import threading
from collections.abc import Iterator

import grpc
import pytest

from cli.embedded_manager import EmbeddedManager, InProcessManagerClient, LockedManager
from kv_manager.core.manager import Manager
from kv_manager.settings import Settings
from model_worker.engine.manager_client import GrpcManagerClient, ManagerClient, ManagerRefused
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, kv_manager_pb2_grpc, steps_pb2

pytestmark = pytest.mark.unit

LEASE_SECONDS = 60.0
POOL = attach_pb2.AttachRequest(
    pool=attach_pb2.PoolSpec(
        pool="p",
        worker_id="w",
        num_blocks=8,
        block_size=4,
        block_bytes=1,
        model_fingerprint="m",
        reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
    )
)


@pytest.fixture
def embedded() -> Iterator[EmbeddedManager]:
    with EmbeddedManager(Settings(listen="127.0.0.1:0", metrics="", lease_seconds=LEASE_SECONDS)) as embedded:
        yield embedded


def step(epoch: int, number: int) -> steps_pb2.StepRequest:
    return steps_pb2.StepRequest(pool="p", epoch=epoch, step=number)


def test_steps_are_answered_in_order_as_over_grpc(embedded: EmbeddedManager) -> None:
    answers: dict[str, list[int]] = {}
    clients: list[ManagerClient] = [InProcessManagerClient(embedded.manager), GrpcManagerClient(embedded.address)]
    for client in clients:
        epoch = client.attach([POOL]).header.epoch
        client.send(step(epoch, 1))
        client.send(step(epoch, 2))
        answers[type(client).__name__] = [client.receive().header.step, client.receive().header.step]
        client.detach(attach_pb2.DetachRequest(pool="p", epoch=epoch))
        client.close()
    assert answers == {"InProcessManagerClient": [1, 2], "GrpcManagerClient": [1, 2]}


def test_a_refusal_is_raised_where_the_answer_is_received(embedded: EmbeddedManager) -> None:
    clients: list[ManagerClient] = [InProcessManagerClient(embedded.manager), GrpcManagerClient(embedded.address)]
    for client in clients:
        epoch = client.attach([POOL]).header.epoch
        client.send(step(epoch, 7))
        with pytest.raises(ManagerRefused) as refused:
            client.receive()
        assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STEP")
        client.close()


def test_attaching_again_forgets_unanswered_steps(embedded: EmbeddedManager) -> None:
    client = InProcessManagerClient(embedded.manager)
    client.send(step(client.attach([POOL]).header.epoch, 1))
    epoch = client.attach([POOL]).header.epoch
    client.send(step(epoch, 1))
    assert client.receive().header.epoch == epoch


def test_an_idle_pool_outlives_its_lease(embedded: EmbeddedManager) -> None:
    client = InProcessManagerClient(embedded.manager)
    epoch = client.attach([POOL]).header.epoch
    # A tick of a second for each second of three leases.
    ticks = 3 * int(LEASE_SECONDS)
    assert [embedded.manager.tick(1000) for _ in range(ticks)] == [[]] * ticks
    assert not embedded.manager.expire("p", epoch)


def test_it_is_inspected_over_grpc(embedded: EmbeddedManager) -> None:
    InProcessManagerClient(embedded.manager).attach([POOL])
    with grpc.insecure_channel(embedded.address) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        (summary,) = stub.ListPools(inspect_pb2.ListPoolsRequest(), timeout=60).pools
    assert (summary.header.pool, summary.connected, summary.stats.free_blocks) == ("p", True, 8)


def test_every_public_method_waits_for_the_lock() -> None:
    manager = LockedManager()
    names = [name for name, value in vars(Manager).items() if callable(value) and not name.startswith("_")]
    assert {"attach", "step", "inspect_pool", "check_integrity", "tick", "expire", "pools"} <= set(names)
    for name in names:
        with manager._lock:
            thread = threading.Thread(target=lambda name=name: _call(manager, name), daemon=True)
            thread.start()
            thread.join(0.02)
            assert thread.is_alive(), f"{name} did not wait"
        thread.join(60)
        assert not thread.is_alive()


def _call(manager: LockedManager, name: str) -> None:
    # Arguments are missing: that it got past the lock is all that is asked here.
    with contextlib.suppress(TypeError):
        getattr(manager, name)()
