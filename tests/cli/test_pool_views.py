"""What ``octavo inspect`` draws of a real manager's answers."""

import io
import struct

import pytest
from google.protobuf.message import Message
from rich.console import Console

from cli.pool_views import view
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, steps_pb2

pytestmark = pytest.mark.unit


def drawn(answer: Message) -> str:
    output = io.StringIO()
    Console(file=output, width=160, highlight=False).print(view(answer))
    return output.getvalue()


@pytest.fixture
def manager() -> Manager:
    """Block size 4. Sequences 1 and 2 of 9 equal tokens: blocks 1 and 2 shared, a third block each, 2 blocks left."""
    manager = Manager()
    spec = attach_pb2.PoolSpec(
        pool="p",
        worker_id="w[1]",
        num_blocks=6,
        block_size=4,
        block_bytes=3 * 2**20,
        model_fingerprint="m",
        reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
    )
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    admit = [
        steps_pb2.Admit(seq=seq, token_ids=struct.pack("<9I", *range(9)), num_tokens=9, arrival=seq) for seq in (1, 2)
    ]
    manager.step(steps_pb2.StepRequest(pool="p", epoch=epoch, step=1, admits=admit))
    return manager


def test_a_pool_at_a_glance(manager: Manager) -> None:
    text = drawn(manager.inspect_pool(inspect_pb2.InspectPoolRequest(pool="p")))
    assert "6 of 4 tokens, 3.00 MiB each" in text
    assert "2 free, 0 cached, 4 referenced, 0 fenced" in text
    assert "2 running, 0 swapped" in text
    # 18 prompt tokens were looked up, the second sequence hit two full blocks: 8 / 18.
    assert "8 of 18 prompt tokens hit (44.4%)" in text
    assert "w[1]" in text  # a name is no markup


def test_a_table_from_logical_to_physical(manager: Manager) -> None:
    text = drawn(manager.inspect_sequence(inspect_pb2.InspectSequenceRequest(pool="p", seq=2)))
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]
    assert [(logical, refs, owners) for logical, _, _, refs, _, owners in rows] == [
        ("0", "2", "1, 2"),
        ("1", "2", "1, 2"),
        ("2", "1", "2"),
    ]
    assert [len(digest) for *_, digest, _ in rows] == [12, 12, 1]  # the third block is not full: no digest


def test_a_map_of_all_blocks(manager: Manager) -> None:
    blocks = manager.inspect_blocks(inspect_pb2.InspectBlocksRequest(pool="p", first_block=0, count=100))
    # Null, two shared, one referenced by each sequence, two free.
    assert drawn(blocks).splitlines()[1].split() == ["0", "0SSrr.."]


def test_the_verdict() -> None:
    assert drawn(inspect_pb2.CheckIntegrityResponse()) == "integrity: every invariant holds\n"
    broken = inspect_pb2.CheckIntegrityResponse(violations=["I1: 5 blocks of 6", "I2: block 3"])
    assert drawn(broken).splitlines() == ["integrity: BROKEN", "I1: 5 blocks of 6", "I2: block 3"]
