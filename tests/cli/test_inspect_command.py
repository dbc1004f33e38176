"""``octavo inspect`` on a running KV manager: what is asked for is asked for, and mistakes are one line."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from processes import ServiceProcess

from octavo.kv.v1 import attach_pb2, common_pb2, kv_manager_pb2_grpc, steps_pb2
from service.channels import open_channel

pytestmark = pytest.mark.e2e

TOKENS = b"".join(token.to_bytes(4, "little") for token in range(6))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two sequences of the same six tokens at block size 4: block 1 is shared, blocks 2 and 3 are their own."""
    with ServiceProcess("kv_manager", "--listen=127.0.0.1:0", "--metrics=", "--lease-seconds=600") as manager:
        address = manager.wait_ready().ready["grpc"]
        with open_channel(address) as channel:
            stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
            spec = attach_pb2.PoolSpec(pool="p", worker_id="w", num_blocks=8, block_size=4)
            spec.reuse_regime = common_pb2.REUSE_REGIME_ORDERED
            epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
            admits = [steps_pb2.Admit(seq=seq, token_ids=TOKENS, num_tokens=6, arrival=seq) for seq in (1, 2)]
            stub.Step(steps_pb2.StepRequest(pool="p", epoch=epoch, step=1, admits=admits))
        yield address


def test_a_sequence_a_block_and_the_verdict(octavo: Any, address: str) -> None:
    done = octavo(["inspect", "--seq", "2", "--block", "1", "--json", "--address", address])
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert list(answer) == ["pool", "sequence", "block", "integrity"]
    assert [(entry["block"], entry["ref_count"]) for entry in answer["sequence"]["table"]] == [(1, 2), (3, 1)]
    assert answer["block"]["blocks"][0]["owners"] == ["1", "2"]
    assert answer["integrity"]["violations"] == []


HOSTILE = "be ta\x1b[2J\x9b31m\r\n\u202e[red]"
ESCAPED = r"be ta\x1b[2J\x9b31m\r\n\u202e[red]"


def test_names_that_others_chose_are_shown_not_obeyed(octavo: Any) -> None:
    """Pool, worker and tenant hold escape sequences: no byte of them reaches the terminal, in answers or in errors."""
    with ServiceProcess("kv_manager", "--listen=127.0.0.1:0", "--metrics=", "--lease-seconds=600") as manager:
        address = manager.wait_ready().ready["grpc"]
        with open_channel(address) as channel:
            stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
            spec = attach_pb2.PoolSpec(pool=HOSTILE, worker_id=HOSTILE, num_blocks=8, block_size=4, reuse_regime=1)
            epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
            root = common_pb2.PrefixRoot(tenant=HOSTILE)
            admit = steps_pb2.Admit(seq=1, token_ids=TOKENS, num_tokens=6, root=root)
            stub.Step(steps_pb2.StepRequest(pool=HOSTILE, epoch=epoch, step=1, admits=[admit]))
            shown = octavo(["inspect", "--address", address])
            spec.pool = "p"
            stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)]))
            which = octavo(["inspect", "--address", address])
    assert shown.returncode == 0
    assert f"pool          {ESCAPED}, epoch" in shown.stdout
    assert f"worker        {ESCAPED}," in shown.stdout
    assert which.stderr == f"octavo: which pool? --pool {ESCAPED} or p\n"
    for text in (shown.stdout, which.stderr):
        assert [char for char in text.replace("\n", "") if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0] == []


def test_a_large_pool_is_looked_at_without_the_check(octavo: Any, address: str) -> None:
    done = octavo(["inspect", "--no-check", "--block", "3", "--address", address])
    assert done.returncode == 0
    assert "2 running, 0 swapped" in done.stdout
    assert "referenced" in done.stdout
    assert "invariant" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--block", "9"], "octavo: pool 'p' has no block 9\n"),
        (["--seq", "7"], "octavo: not found: pool 'p' has no live sequence 7 (SEQUENCE_NOT_FOUND)\n"),
        (
            ["--pool", "q"],
            "octavo: not found: pool 'q' is unknown or has expired: attach again (POOL_NOT_FOUND): "
            "`octavo check` names the pools there are\n",
        ),
    ],
)
def test_what_is_not_there_is_one_line(octavo: Any, address: str, arguments: list[str], line: str) -> None:
    done = octavo(["inspect", *arguments, "--address", address])
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
