"""A pool of 100,000 blocks in the browser, every update changing 1,000 of them.

The benchmark itself holds what is drawn to what the manager says. How long it takes is not judged here: that is the
machine's.
"""

import re
import subprocess
import sys

import pytest
from processes import REPOSITORY

UPDATES = 9


@pytest.mark.e2e
@pytest.mark.browser
@pytest.mark.timeout(900)
def test_a_hundred_thousand_blocks_are_drawn_as_they_are() -> None:
    command = [sys.executable, "benchmarks/inspector.py", "--only=browser", f"--updates={UPDATES}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    rows = re.findall(r"^\| 100,000 \| ([\w ,]+) \| (\d+) \| 1,000 \|", done.stdout, flags=re.MULTILINE)
    assert [view for view, _ in rows] == ["all blocks", "zoomed in, patterns"]
    assert all(int(count) >= UPDATES for _, count in rows)
