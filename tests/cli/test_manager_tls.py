"""What drives a manager can drive one that wants certificates."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from processes import ServiceProcess

from octavo.kv.v1 import attach_pb2, common_pb2, kv_manager_pb2_grpc
from service.channels import open_channel

pytestmark = pytest.mark.e2e

MANAGER = ("kv_manager", "--listen", "127.0.0.1:0", "--metrics", "")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl")
    return Authority(tmp_path_factory.mktemp("authority"), ["manager", "caller"])


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an attach and a detach."""
    file = tmp_path_factory.mktemp("record") / "life.record"
    with ServiceProcess(*MANAGER, "--record", str(file)) as process:
        with open_channel(process.wait_ready().ready["grpc"]) as channel:
            stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
            spec = attach_pb2.PoolSpec(
                pool="p", worker_id="w", num_blocks=8, block_size=4, reuse_regime=common_pb2.REUSE_REGIME_ORDERED
            )
            epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
            stub.Detach(attach_pb2.DetachRequest(pool="p", epoch=epoch))
        process.stop()
    return file


@pytest.fixture(scope="module")
def address(authority: Authority) -> Iterator[str]:
    """A manager that wants certificates."""
    serve = [word for name, value in authority.serve("manager", "tls-ca").items() for word in (f"--{name}", str(value))]
    with ServiceProcess(*MANAGER, *serve) as process:
        yield process.wait_ready().ready["grpc"]


def test_replay_and_simulate_drive_a_manager_that_wants_certificates(
    address: str, record: Path, authority: Authority, octavo: Any
) -> None:
    certificate, key = authority.files["caller"]
    known = ["--tls-ca", str(authority.ca), "--tls-certificate", str(certificate), "--tls-key", str(key)]
    replay = ["replay", str(record), "--target", address]
    simulate = ["simulate", "--requests", "3", "--memory", "1", "--address", address]
    played = octavo([*replay, *known])
    assert (played.returncode, played.stdout, played.stderr) == (0, "2 records played, 0 answers differ\n", "")
    assert octavo([*simulate, *known]).returncode == 0
    for command in (replay, simulate):
        unknown = octavo(command)
        assert unknown.returncode == 1
        assert unknown.stderr.startswith(f"octavo: no KV manager answers at {address}: it closes the connection")
        assert unknown.stderr.count("\n") == 1
