"""What a process may have: files to open, and a stdout that takes nothing."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.process import raise_open_files

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.unit
def test_as_many_files_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.e2e
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_under_stdout_ends_no_service() -> None:
    command = [sys.executable, "-m", "kv_manager", "--listen", "127.0.0.1:0", "--metrics", ""]
    with (
        open("/dev/full", "wb") as full,
        subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process,
    ):
        assert process.stderr is not None
        told = json.loads(process.stderr.readline())
        assert told["message"] == "the ready line cannot be written to stdout: No space left on device"
        process.send_signal(signal.SIGTERM)
        rest = [json.loads(line)["message"] for line in process.stderr]
        assert rest == ["SIGTERM: draining for up to 1 s"]
        assert process.wait(60) == 0
