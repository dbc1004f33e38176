"""What ``octavo inspect`` draws of a real manager's answers."""

import io
import math
import struct
from typing import Any

import pytest
from google.protobuf.message import Message
from rich.console import Console

from cli.pool_views import VIEWS
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, lookup_pb2, steps_pb2

pytestmark = pytest.mark.unit


def drawn(view: str, answer: Message) -> str:
    output = io.StringIO()
    Console(file=output, width=160, highlight=False).print(VIEWS[view](answer))
    return output.getvalue()


def cells(text: str) -> list[list[str]]:
    """The rows of a drawn table, without its heading."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]


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
    text = drawn("pool", manager.inspect_pool(inspect_pb2.InspectPoolRequest(pool="p")))
    assert "6 of 4 tokens, 3.00 MiB each" in text
    assert "2 free, 0 cached, 4 referenced, 0 fenced" in text
    assert "2 running, 0 swapped" in text
    # 18 prompt tokens were looked up, the second sequence hit two full blocks: 8 / 18.
    assert "8 of 18 prompt tokens hit (44.4%)" in text
    assert "w[1]" in text  # a name is no markup


def test_a_table_from_logical_to_physical(manager: Manager) -> None:
    text = drawn("sequence", manager.inspect_sequence(inspect_pb2.InspectSequenceRequest(pool="p", seq=2)))
    assert "sequence 2, running: 9 tokens known, 9 granted, group 2, priority 0" in text
    rows = cells(text)
    assert [(logical, refs, owners) for logical, _, _, refs, _, owners in rows] == [
        ("0", "2", "1, 2"),
        ("1", "2", "1, 2"),
        ("2", "1", "2"),
    ]
    assert [len(digest) for *_, digest, _ in rows] == [12, 12, 1]  # the third block is not full: no digest


def test_a_block_and_who_shares_it(manager: Manager) -> None:
    request = inspect_pb2.InspectBlocksRequest(pool="p", first_block=1, count=1)
    text = drawn("block", manager.inspect_blocks(request))
    lines = {line[:8].strip(): line[8:].strip() for line in text.splitlines()}
    assert (lines["block"], lines["state"], lines["refs"], lines["named by"]) == ("1", "referenced", "2", "1, 2")
    (match,) = manager.match_prefix(
        lookup_pb2.MatchPrefixRequest(token_ids=struct.pack("<4I", *range(4)), include_digests=True)
    ).matches
    assert lines["digest"] == match.digests[0].hex()
    nobodys = inspect_pb2.InspectBlocksRequest(pool="p", first_block=6, count=1)
    assert "nobody" in drawn("block", manager.inspect_blocks(nobodys))


def test_a_block_with_more_owners_than_are_told() -> None:
    info = inspect_pb2.BlockInfo(block=1, state=inspect_pb2.BLOCK_STATE_REFERENCED, ref_count=3, owners=[4, 5], fence=9)
    text = drawn("block", inspect_pb2.InspectBlocksResponse(blocks=[info]))
    assert "4, 5, ..." in text
    assert "referenced, not granted before step 9 has completed" in text


def test_who_gave_way_and_what_it_would_have_cost() -> None:
    """Four blocks of 4, two prompts of 7 fill them. The first grows to 9: the second is the worst-ranked and gives way.

    Recompute: 7 tokens at 1,000 per second. Swap: 2 blocks of 1,000 bytes, out and in, at 10^6 bytes per second.
    """
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="p", worker_id="w", num_blocks=4, block_size=4, block_bytes=1_000, host_blocks=4)
    spec.reuse_regime = common_pb2.REUSE_REGIME_ORDERED
    spec.rates.prefill_tokens_per_second, spec.rates.copy_bytes_per_second = 1_000.0, 1e6
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch

    def step(number: int, **items: Any) -> None:
        request = steps_pb2.StepRequest(pool="p", epoch=epoch, step=number, completed_step=number - 1, **items)
        manager.step(request)

    prompts = [steps_pb2.Admit(seq=seq, token_ids=bytes([seq]) * 28, num_tokens=7, arrival=seq) for seq in (1, 2)]
    step(1, admits=prompts)
    step(2, advances=steps_pb2.Advances(seqs=[1], num_tokens=[9]))
    text = drawn("pool", manager.inspect_pool(inspect_pb2.InspectPoolRequest(pool="p")))
    assert "2 of 4 blocks parked" in text
    assert cells(text)[-1] == ["2", "2", "1", "pool", "swap", "7.0 ms", "4.0 ms"]
    parked = drawn("sequence", manager.inspect_sequence(inspect_pb2.InspectSequenceRequest(pool="p", seq=2)))
    assert "sequence 2, swapped" in parked
    assert cells(parked) == [["0", "0"], ["1", "1"]]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "-"), (0.0042, "4.2 ms"), (math.inf, "no room")],
    ids=["unmeasured", "measured", "no room"],
)
def test_a_price(seconds: float, told: str) -> None:
    """Without rates nothing is known; a group larger than the host tier cannot be parked at any price."""
    preempted = steps_pb2.Preempted(
        seq=3,
        requester=3,
        mode=steps_pb2.PREEMPTION_MODE_RECOMPUTE,
        reason=steps_pb2.PREEMPTION_REASON_TENANT_LIMIT,
        swap_seconds=seconds,
    )
    answer = inspect_pb2.InspectPoolResponse(
        recent_preemptions=[inspect_pb2.PreemptionRecord(step=8, preempted=preempted)]
    )
    assert cells(drawn("pool", answer)) == [["8", "3", "itself", "tenant limit", "recompute", "-", told]]


def test_a_map_of_all_blocks(manager: Manager) -> None:
    blocks = manager.inspect_blocks(inspect_pb2.InspectBlocksRequest(pool="p", first_block=0, count=100))
    # Null, two shared, one referenced by each sequence, two free.
    assert drawn("blocks", blocks).splitlines()[1].split() == ["0", "0SSrr.."]


def test_the_verdict() -> None:
    assert drawn("integrity", inspect_pb2.CheckIntegrityResponse()) == "integrity: every invariant holds\n"
    broken = inspect_pb2.CheckIntegrityResponse(violations=["I1: 5 blocks of 6", "I2: block 3"])
    assert drawn("integrity", broken).splitlines() == ["integrity: BROKEN", "I1: 5 blocks of 6", "I2: block 3"]
