"""What may not be in a tracked file: machine paths, secrets, names of package hosts; and files too long to read."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.unit

FORBIDDEN = {
    "path of one machine": re.compile(r"(?<![\w./-])/(?:home|root|Users|work|tmp)/[\w.-]+"),
    "package host": re.compile(
        r"pypi\.org|pythonhosted|registry\.npmjs|npmjs\.(?:org|com)|deb\.debian|download\.pytorch"
    ),
    "secret": re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:AKIA[0-9A-Z]{16}|ghp_\w{30,}|hf_[A-Za-z]{30,}|sk-[A-Za-z0-9]{32,})"
    ),
}
# This file names what it looks for.
EXCEPT = {"tests/repository/test_tracked_files.py"}


def tracked_texts() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if name not in EXCEPT and path.is_file():
            raw = path.read_bytes()
            if b"\0" not in raw:
                texts[name] = raw.decode("utf-8")
    return texts


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_holds(what: str) -> None:
    found = [
        f"{name}:{number}: {match.group()}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := FORBIDDEN[what].search(line))
    ]
    assert found == []


def test_the_patterns_find_what_they_are_for() -> None:
    examples = {
        "path of one machine": "open('/home/someone/file')",
        "package host": "--index-url https://pypi.org/simple",
        "secret": "-----BEGIN RSA PRIVATE KEY-----",
    }
    assert all(FORBIDDEN[what].search(example) for what, example in examples.items())


def test_scripts_run_and_markers_are_declared() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = {marker.split(":")[0] for marker in configuration["tool"]["pytest"]["ini_options"]["markers"]}
    makefile = (ROOT / "Makefile").read_text()
    named = {word for expression in re.findall(r"-m '([^']+)'", makefile) for word in expression.split()}
    assert named - {"not", "and", "or"} <= declared
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
