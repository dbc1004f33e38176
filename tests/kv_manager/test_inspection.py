"""Inspect in slices: the answers of one moment when nothing happens meanwhile, and steps go on when something does."""

import struct

import pytest

from kv_manager.core.manager import Manager
from kv_manager.core.slices import SLICE_BLOCKS
from octavo.kv.v1 import attach_pb2, inspect_pb2, steps_pb2

pytestmark = pytest.mark.unit

BLOCKS = 4_000


@pytest.fixture
def manager():
    """Two sequences share 1,000 blocks of one token and hold one more each."""
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="pool", worker_id="w", num_blocks=BLOCKS, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    ids = struct.pack("<1001I", *range(1_001))
    admits = [
        steps_pb2.Admit(seq=1, token_ids=ids, num_tokens=1_001, arrival=1),
        steps_pb2.Admit(seq=2, token_ids=ids[:-4] + b"\xff" * 4, num_tokens=1_001, arrival=2),
    ]
    manager.step(steps_pb2.StepRequest(pool="pool", epoch=epoch, step=1, admits=admits))
    return manager


def release(manager, seq):
    pool = manager.pools()[0]
    request = steps_pb2.StepRequest(pool="pool", epoch=pool.epoch, step=pool.step + 1, completed_step=pool.step)
    request.releases.add(seq=seq)
    manager.step(request)


def test_every_block_in_slices(manager):
    """4,001 blocks by 128 are 31 pauses; before them the two tables of 1,001 entries are looked through."""
    request = inspect_pb2.InspectBlocksRequest(pool="pool", count=65_536)
    *pauses, answer = manager.inspecting_blocks(request)
    assert len(pauses) >= (BLOCKS + 1) // SLICE_BLOCKS
    assert set(pauses) == {None}
    assert answer == manager.inspect_blocks(request)
    assert [info.block for info in answer.blocks] == list(range(BLOCKS + 1))
    assert [list(answer.blocks[block].owners) for block in (0, 1, 1_000, 1_001, 1_002, 1_003)] == [
        [],
        [1, 2],
        [1, 2],
        [1],
        [2],
        [],
    ]


def test_a_long_table_in_slices(manager):
    *pauses, answer = manager.inspecting_sequence(inspect_pb2.InspectSequenceRequest(pool="pool", seq=2))
    assert len(pauses) >= 1_001 // SLICE_BLOCKS
    assert [info.ref_count for info in answer.table] == [2] * 1_000 + [1]
    assert [list(info.owners) for info in (answer.table[0], answer.table[-1])] == [[1, 2], [2]]


def test_a_sequence_that_ends_meanwhile_is_shown_as_it_was(manager):
    """Its table is the one it had; its blocks are what they are by then."""
    work = manager.inspecting_sequence(inspect_pb2.InspectSequenceRequest(pool="pool", seq=2))
    assert manager.run_slice(work) is None
    release(manager, 2)
    while (answer := manager.run_slice(work)) is None:
        pass
    assert len(answer.table) == 1_001
    assert answer.table[-1].state == inspect_pb2.BLOCK_STATE_CACHED
    assert answer.table[-1].ref_count == 0
