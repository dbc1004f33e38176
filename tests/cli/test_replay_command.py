"""``octavo replay`` on a record that a running KV manager wrote."""

from pathlib import Path
from typing import Any

import pytest
from processes import ServiceProcess

from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, kv_manager_pb2_grpc, steps_pb2
from service.channels import open_channel

pytestmark = pytest.mark.e2e

MANAGER = ("kv_manager", "--listen", "127.0.0.1:0", "--metrics", "")
# Six tokens at block size 4: two blocks.
TOKENS = b"".join(token.to_bytes(4, "little") for token in range(6))


def record_life(record: Path) -> None:
    """A sequence comes, grows to 9 tokens and goes: attach, three steps, detach are five records."""
    with ServiceProcess(*MANAGER, "--record", str(record)) as manager:
        with open_channel(manager.wait_ready().ready["grpc"]) as channel:
            stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
            spec = attach_pb2.PoolSpec(
                pool="p",
                worker_id="w",
                num_blocks=8,
                block_size=4,
                model_fingerprint="m",
                reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
            )
            epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
            admit = steps_pb2.Admit(seq=1, token_ids=TOKENS, num_tokens=6, arrival=1)
            advance = steps_pb2.Advances(seqs=[1], num_tokens=[9], rooms=[9])
            release = steps_pb2.Release(seq=1, reason=steps_pb2.RELEASE_REASON_FINISHED)
            changes: list[dict[str, Any]] = [{"admits": [admit]}, {"advances": advance}, {"releases": [release]}]
            for step, change in enumerate(changes, start=1):
                stub.Step(steps_pb2.StepRequest(pool="p", epoch=epoch, step=step, completed_step=step - 1, **change))
            stub.Detach(attach_pb2.DetachRequest(pool="p", epoch=epoch))
        manager.stop()


def test_a_record_gets_the_same_answers_here_and_at_another_manager(tmp_path: Path, octavo: Any) -> None:
    record = tmp_path / "life.record"
    record_life(record)
    here = octavo(["replay", str(record)])
    assert (here.returncode, here.stdout, here.stderr) == (0, "5 records played, 0 answers differ\n", "")
    cut = tmp_path / "cut.record"
    cut.write_bytes(record.read_bytes()[:-1])
    played = octavo(["replay", str(cut)])
    assert (played.returncode, played.stdout) == (2, "4 records played, 0 answers differ\n")
    assert played.stderr.startswith(f"{cut}: the record is cut off: its last message has ")
    with ServiceProcess(*MANAGER) as manager:
        address = manager.wait_ready().ready["grpc"]
        # What is missing is the Detach: the pool that the replay made must not stay.
        assert octavo(["replay", str(cut), "--target", address]).returncode == 2
        with open_channel(address) as channel:
            stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
            assert list(stub.ListPools(inspect_pb2.ListPoolsRequest()).pools) == []
        there = octavo(["replay", str(record), "--target", address])
    assert (there.returncode, there.stdout, there.stderr) == (0, "5 records played, 0 answers differ\n", "")
    nobody = octavo(["replay", str(record), "--target", "127.0.0.1:1"])
    assert nobody.returncode == 1
    assert nobody.stderr.startswith("octavo: no KV manager answers at 127.0.0.1:1")


def test_what_is_no_record_is_one_line(tmp_path: Path, octavo: Any) -> None:
    (tmp_path / "text").write_text("no record")
    done = octavo(["replay", str(tmp_path / "text")])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
