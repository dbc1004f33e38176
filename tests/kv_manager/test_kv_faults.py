"""A fault of ours in the middle of a step: the pool is dropped, and its worker brings it back whole."""

import pytest

from kv_manager.core import growth
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, steps_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit


def attach(manager, live=(), step=0):
    spec = attach_pb2.PoolSpec(pool="pool", worker_id="w", num_blocks=8, block_size=4, step=step)
    spec.reuse_regime = common_pb2.REUSE_REGIME_ORDERED
    parts = [attach_pb2.AttachRequest(pool=spec)]
    parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=live))] if live else []
    return manager.attach(parts).header.epoch


def test_a_torn_pool_is_dropped_and_adopted_again(monkeypatch):
    manager = Manager()
    epoch = attach(manager)
    prompt = steps_pb2.Admit(seq=1, token_ids=bytes(24), num_tokens=6)
    table = list(
        manager.step(steps_pb2.StepRequest(pool="pool", epoch=epoch, step=1, admits=[prompt])).grants[0].blocks
    )
    grow = steps_pb2.StepRequest(
        pool="pool", epoch=epoch, step=2, advances=steps_pb2.Advances(seqs=[1], num_tokens=[9])
    )
    with monkeypatch.context() as patch:
        patch.setattr(growth, "_decode", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            manager.step(grow)
    with pytest.raises(ServiceError) as caught:
        manager.step(grow)
    assert caught.value.reason == "POOL_NOT_FOUND"
    live = attach_pb2.LiveSequence(seq=1, token_ids=bytes(28), computed_tokens=6, granted_tokens=6, table=table)
    grow.epoch = attach(manager, [live], step=1)
    assert [grant.seq for grant in manager.step(grow).grants] == [1]
    check = manager.check_integrity(inspect_pb2.CheckIntegrityRequest(pool="pool"))
    assert list(check.violations) == []


def test_a_refused_step_drops_nothing():
    manager = Manager()
    epoch = attach(manager)
    release = steps_pb2.Release(seq=9)
    with pytest.raises(ServiceError):
        manager.step(steps_pb2.StepRequest(pool="pool", epoch=epoch, step=1, releases=[release]))
    assert manager.step(steps_pb2.StepRequest(pool="pool", epoch=epoch, step=1)).header.step == 1


@pytest.mark.parametrize(("ahead", "verdict"), [(-1, "is over"), (1, "was never given")])
def test_an_epoch_that_is_not_the_pools_is_told_apart(ahead, verdict):
    manager = Manager(first_epoch=7)
    epoch = attach(manager)
    with pytest.raises(ServiceError) as caught:
        manager.step(steps_pb2.StepRequest(pool="pool", epoch=epoch + ahead, step=1))
    assert caught.value.reason == "STALE_EPOCH"
    assert caught.value.message == f"epoch {7 + ahead} of pool 'pool' {verdict}, the current one is 7"
