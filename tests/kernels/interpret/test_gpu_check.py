"""The script that checks a GPU, run in the interpreter: so much of it is known to work before a device is lent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.interpret
def test_every_untimed_part_passes(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "benchmarks" / "gpu_check.sh", "--device", "cpu", "--seconds", "10000"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "interpret kernels on cpu" in done.stdout
    assert "0 failed, 0 skipped" in done.stdout
    rows = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {row["part"] for row in rows} == {"bits", "float64", "same bits", "poison", "generation"}
    assert all(row["passed"] for row in rows)
