"""Whoever calls a TLS port in plain text is nobody's trouble: no raw line of gRPC's core gets among the log's JSON."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from authority import Authority
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.channels import open_channel

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("module", "flags"),
    [("kv_manager", ["--metrics", ""]), ("gateway", ["--http-listen", "127.0.0.1:0", "--workers", "127.0.0.1:1"])],
    ids=["kv_manager", "gateway"],
)
def test_they_leave_no_line_that_is_no_log_entry(module: str, flags: Sequence[str], tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path, ["server"]).files["server"]
    command = [sys.executable, "-m", module, "--listen", "127.0.0.1:0", *flags]
    with subprocess.Popen(
        [*command, "--tls-certificate", str(certificate), "--tls-key", str(key)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            # The gateway's ready line would wait for a worker; its log tells the addresses before.
            lines = process.stdout if module == "kv_manager" else process.stderr
            addresses = next(entry for entry in map(json.loads, lines) if "grpc" in entry)
            with open_channel(addresses["grpc"]) as channel, pytest.raises(grpc.RpcError):
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            for address in filter(None, (addresses["grpc"], addresses.get("http"))):
                host, _, port = address.rpartition(":")
                with socket.create_connection((host, int(port)), 60) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
                    assert not connection.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0
    assert any("draining" in json.loads(line)["message"] for line in log.splitlines())
