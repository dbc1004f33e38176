"""Commands behind a pipe: lines without padding, and a reader that leaves early is no failure."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from rich.table import Table

from cli.printing import show
from cli.simulate.progress import LINE_SECONDS, Bars, Lines

MODEL = ["--layers", "2", "--kv-heads", "2", "--head-dim", "64"]
SMALL = ["simulate", "--lengths", "alpaca", "--requests", "20", "--memory", "2"]


def run(arguments: Sequence[str], stdout: int) -> subprocess.CompletedProcess[str]:
    """The command, with a file descriptor for its stdout."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.e2e
@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["tour"], ["estimate", *MODEL], SMALL])
def test_no_line_ends_in_padding(octavo: Any, arguments: Sequence[str]) -> None:
    done = octavo(arguments)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.unit
def test_a_view_is_as_wide_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("one", "two")
    table.add_row("a" * 60, "b" * 60)
    show(table, width=140)
    shown = capsys.readouterr().out
    assert "a" * 60 in shown
    assert "b" * 60 in shown
    assert max(map(len, shown.splitlines())) <= 140


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["tour"], 0),
        (["estimate", "--list"], 0),
        (["estimate", *MODEL], 0),
        (["no-such-command"], 2),  # which it says on stderr, and prints nothing
        (["inspect", "--address", "127.0.0.1:1"], 1),
    ],
)
def test_a_reader_that_has_left_changes_no_status_and_is_not_told_of(arguments: Sequence[str], status: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(arguments, writing)
    finally:
        os.close(writing)
    assert done.returncode == status
    assert (done.stderr == "") is (status == 0)
    assert "roken pipe" not in done.stderr


@pytest.mark.e2e
def test_a_closed_stdout_is_none_to_fail_at() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m cli.main estimate --list >&-', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.unit
def test_progress_off_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    bars = Bars(Lines(lambda: now).begin)
    hits, hours = bars.counting("hits", 2_000), bars.counting("hours", 50)
    # Moves a tenth of a period apart: each tenth of them makes a line, of the bar that moved first then.
    for number in range(1, 31):
        now = number * LINE_SECONDS / 10
        hits()
        hours()
    assert capsys.readouterr().err.splitlines() == [f"hits: {done} of 2,000" for done in (10, 20, 30)]


@pytest.mark.e2e
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["tour"], ["estimate", *MODEL], ["estimate", "--json", *MODEL]])
def test_a_disk_that_is_full_is_one_line(arguments: Sequence[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = run(arguments, full.fileno())
    assert (done.returncode, done.stderr) == (1, "octavo: the output cannot be written: no space left on device\n")
