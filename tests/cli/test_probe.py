"""``python -m service.probe``, the health check of the images."""

import socket
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.probe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_a_serving_server_is_healthy_and_a_loading_one_is_not(gateway: Any) -> None:
    assert probe(gateway.address).returncode == 0
    gateway.set_ready(False)
    loading = probe(gateway.address)
    assert (loading.returncode, loading.stderr) == (1, f"{gateway.address}: NOT_SERVING\n")


def test_nobody_there_is_not_healthy() -> None:
    with socket.socket() as reserved:  # bound but not listening: a connection is refused
        reserved.bind(("127.0.0.1", 0))
        assert probe(f"127.0.0.1:{reserved.getsockname()[1]}").returncode == 1


def test_an_address_is_needed() -> None:
    assert "usage:" in probe().stderr
