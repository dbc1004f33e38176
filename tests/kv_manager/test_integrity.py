"""CheckIntegrity: what it finds when something is broken, and that blocks nobody ever had cost nothing."""

import tracemalloc

import pytest

from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, inspect_pb2, steps_pb2

pytestmark = pytest.mark.unit

MILLION = 1 << 20


def attached(num_blocks, live=()):
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="pool", worker_id="w", num_blocks=num_blocks, block_size=4, reuse_regime=1)
    parts = [attach_pb2.AttachRequest(pool=spec)]
    parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=live))] if live else []
    manager.attach(parts)
    return manager, manager.pools()[0]


def check(manager):
    return manager.check_integrity(inspect_pb2.CheckIntegrityRequest(pool="pool"))


@pytest.mark.parametrize("block", [1, MILLION])
def test_a_million_free_blocks_cost_nothing(block):
    """One block is in a table, the first or the last: a list of the others would take eight megabytes."""
    live = attach_pb2.LiveSequence(seq=1, token_ids=bytes(16), computed_tokens=4, granted_tokens=4, table=[block])
    manager, _ = attached(MILLION, [live])
    tracemalloc.start()
    answer = check(manager)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(answer.violations) == []
    assert peak < 100_000


def admit(manager, pool):
    request = steps_pb2.StepRequest(pool="pool", epoch=pool.epoch, step=1)
    request.admits.add(seq=1, token_ids=bytes(20), num_tokens=5)
    manager.step(request)
    assert list(check(manager).violations) == []


def take_unseen(pool):
    """A table names a block that was never granted: the fifth of eight."""
    pool.sequences[1].table.append(5)


def count_one_more(pool):
    pool.blocks.ref_count[2] += 1


def lose_one(pool):
    """A block leaves the ranges and comes nowhere."""
    pool.blocks.take()
    pool.blocks.ref_count[3] = 0


def cache_without_a_digest(pool):
    pool.blocks.drop_table(pool.sequences[1].table, fence=0)
    pool.sequences[1].table = []
    pool.blocks.digest[1] = None


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (take_unseen, "I2: a table names block 5, which was never granted"),
        (count_one_more, "I2: block 2 has reference count 2, tables name it 1 times"),
        (lose_one, "I1: block 3 is in 0 states"),
        (cache_without_a_digest, "I1: block 1 lies among the cached ones"),
    ],
)
def test_what_is_broken_is_found(damage, told):
    """Two blocks of eight in use."""
    manager, pool = attached(8)
    admit(manager, pool)
    damage(pool)
    assert told in check(manager).violations
