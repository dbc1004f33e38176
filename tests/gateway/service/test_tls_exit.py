"""A service with TLS that has ended keeps no object of gRPC, for which its process would wait 2 s."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from authority import Authority

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]

ROOT = Path(__file__).resolve().parents[3]

# What is registered first is called last: when the interpreter is about to be taken down.
LOOKING = """
import atexit, gc, json, sys

def look():
    kinds = ("AioChannel", "AioServer")
    found = sorted(type(one).__name__ for one in gc.get_objects() if type(one).__name__ in kinds)
    print(json.dumps(found), flush=True)

atexit.register(look)
from gateway.app import run
from gateway.settings import load
sys.exit(run(load()))
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, ["gateway"])


@pytest.mark.parametrize("tls", ["of its own", "towards a worker"])
def test_nothing_of_grpc_is_left_at_the_end(authority: Authority, tls: str) -> None:
    flags = authority.serve("gateway") if tls == "of its own" else {"worker-ca": authority.ca}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    listen = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--workers", "127.0.0.1:1"]
    with subprocess.Popen(
        [sys.executable, "-c", LOOKING, *listen, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            # Then a channel has been used.
            assert any("cannot be used" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert json.loads(said) == []
    assert process.returncode == 0
