"""Whoever calls a TLS port in plain text is nobody's trouble: no raw line of gRPC's core gets among the log's JSON."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
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


def test_they_leave_no_line_that_is_no_log_entry(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path, ["server"]).files["server"]
    listen = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--workers", "127.0.0.1:1"]
    command = [sys.executable, "-m", "gateway", *listen]
    with subprocess.Popen(
        [*command, "--tls-certificate", str(certificate), "--tls-key", str(key)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
    ) as process:
        assert process.stderr is not None
        try:
            # The ready line would wait for a worker; the log tells the addresses before.
            addresses = next(entry for entry in map(json.loads, process.stderr) if "grpc" in entry)
            with open_channel(addresses["grpc"]) as channel, pytest.raises(grpc.RpcError):
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            for address in (addresses["grpc"], addresses["http"]):
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
