"""docs/estimate.md and docs/tour.md show what the commands print: each block is the output of its first line."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/estimate.md", "docs/tour.md")
pytestmark = pytest.mark.e2e


def blocks(page: str) -> list[tuple[str, str]]:
    """(command, what it prints) of every console block of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```console\n\$ (octavo .*)\n((?:.*\n)*?)```$", text, flags=re.MULTILINE)
    assert len(found) == text.count("```console"), f"{page}: a block that is no command of ours"
    return found


def printed(command: str) -> str:
    """What a command prints where no terminal is; lines end where their text does."""
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    arguments = [sys.executable, "-m", "cli.main", *shlex.split(command)[1:]]
    done = subprocess.run(arguments, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=True)
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


@pytest.mark.parametrize(("command", "shown"), [block for page in PAGES for block in blocks(page)])
def test_a_page_shows_what_its_command_prints(command: str, shown: str) -> None:
    assert printed(command) == shown, f"write the pages anew: {sys.executable} {__file__}"


def write(page: str) -> None:
    """Put what the commands print now into a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for command, shown in blocks(page):
        text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{printed(command)}```")
    (ROOT / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for each in PAGES:
        write(each)
