"""Leases by ticks: who is gone, and who was only not heard because nobody listened."""

import pytest

from kv_manager.core.lease import Lease
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2

pytestmark = pytest.mark.unit


def attach(manager, name="pool"):
    spec = attach_pb2.PoolSpec(
        pool=name, worker_id="w", num_blocks=8, block_size=4, reuse_regime=common_pb2.REUSE_REGIME_ORDERED
    )
    return manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch


def test_a_lease_runs_out_after_its_length():
    lease = Lease.fresh(3_000)
    for _ in range(2):
        lease.tick(1_000)
    assert not lease.over
    lease.tick(1_000)
    assert lease.over


def test_a_late_tick_counts_one_second():
    """A manager paused for 5 s with leases of 3 s must not drop a pool: the pause counts 1 s."""
    lease = Lease.fresh(3_000)
    lease.tick(1_000)
    lease.tick(5_000)
    assert lease.remaining_ms == 1_000


def test_an_open_stream_keeps_the_pool_and_its_end_starts_the_lease():
    lease = Lease.fresh(2_000)
    lease.open_stream()
    for _ in range(10):
        lease.tick(1_000)
    assert not lease.over
    lease.close_stream()
    lease.tick(1_000)
    assert (lease.over, lease.remaining_ms) == (False, 1_000)
    lease.tick(1_000)
    assert lease.over


def test_every_step_renews_the_lease():
    manager = Manager(lease_ms=2_000)
    epoch = attach(manager)
    for step in range(1, 6):
        assert manager.tick(1_000) == []
        manager.step(steps_pb2.StepRequest(pool="pool", epoch=epoch, step=step))
    assert manager.tick(1_000) == []
    assert manager.tick(1_000) == [("pool", epoch)]


def test_a_worker_heard_after_the_tick_keeps_its_pool():
    """The decision falls only after every readable message was handled."""
    manager = Manager(lease_ms=1_000)
    epoch = attach(manager)
    assert manager.tick(1_000) == [("pool", epoch)]
    manager.step(steps_pb2.StepRequest(pool="pool", epoch=epoch, step=1))
    assert not manager.expire("pool", epoch)
    assert [pool.name for pool in manager.pools()] == ["pool"]


def test_an_expired_pool_is_gone():
    manager = Manager(lease_ms=1_000)
    epoch = attach(manager)
    manager.tick(1_000)
    assert manager.expire("pool", epoch)
    assert manager.pools() == []
    assert not manager.expire("pool", epoch)


def test_a_pool_attached_meanwhile_is_another():
    manager = Manager(lease_ms=1_000)
    old = attach(manager)
    manager.tick(1_000)
    new = attach(manager)
    assert new == old + 1
    assert not manager.expire("pool", old)
    assert not manager.expire("pool", new)
