"""Every command of the README, run as it stands there; only addresses and the environment's folder differ.

So are the first commands of docs/operations.md, on the same services.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from shown_commands import blocks as blocks_of
from shown_commands import parsed, typed
from shown_serve import LISTENERS, serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
pytestmark = [pytest.mark.e2e, pytest.mark.model]

# Blocks that another test covers: containers by tests/repository/test_containers.py.
COVERED_ELSEWHERE = {"sh"}
PORTS = " ".join([*(f"--{name} 0" for name in LISTENERS), "--threads 2"])


def blocks() -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def console() -> list[tuple[str, str]]:
    """(command, what it prints) of every console block."""
    texts = [text for language, text in blocks() if language == "console"]
    return [(text.split("\n", 1)[0].removeprefix("$ "), text.split("\n", 1)[1]) for text in texts]


def python_block() -> str:
    (found,) = [text for language, text in blocks() if language == "python"]
    return found


@pytest.fixture(scope="module")
def environ(demo_model: Path) -> Iterator[dict[str, str]]:
    """The first command of the README, running; the environment that points the others at it."""
    command = shlex.split(console()[0][0])
    assert command == ["make", "serve"]
    # The environment that runs the tests counts as made, and the model as fetched.
    venv = Path(sys.executable).parents[1]
    stamp = venv / ".octavo-installed"
    variables = [f"VENV={venv}", f"MODEL={demo_model}", f"SERVE={PORTS}"]
    with serving([command[0], "-o", str(stamp), *command[1:], *variables], ROOT) as fields:
        addresses = {"OCTAVO_ADDRESS": fields["grpc"], "OCTAVO_MANAGER_ADDRESS": fields["manager"]}
        yield {**os.environ, **addresses, "HTTP": fields["http"]}


def test_every_block_is_run_by_a_test() -> None:
    languages = {language for language, _ in blocks()} - COVERED_ELSEWHERE
    assert languages == {"console", "python", ""}
    assert [command.split()[0] for command, _ in console()] == ["make", ".venv/bin/octavo", ".venv/bin/octavo"]


@pytest.mark.parametrize(("command", "prints"), console()[1:])
def test_a_command_prints_what_the_readme_shows(environ: dict[str, str], command: str, prints: str) -> None:
    arguments = shlex.split(command)
    arguments[0] = str(Path(sys.executable).with_name("octavo"))
    done = subprocess.run(arguments, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == prints if prints else "integrity: every invariant holds" in done.stdout


def test_the_python_client_prints_the_same_text(environ: dict[str, str], tmp_path: Path) -> None:
    lines = [line for line in python_block().splitlines() if line]
    assert len(lines) <= 10
    script = tmp_path / "client.py"
    script.write_text(python_block().replace("127.0.0.1:50050", environ["OCTAVO_ADDRESS"]))
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == console()[1][1].rstrip("\n")


def test_the_containers_request_streams_the_same_over_http(environ: dict[str, str]) -> None:
    """curl may be missing where tests run: the request is the same."""
    (lines,) = [typed(block) for block in blocks_of("README.md") if "curl" in block.text]
    (curl,) = [one for line in lines for one in parsed("README.md", line, fenced=True) if one.words[0] == "curl"]
    program, flag, url, header, kind, data, body = curl.words
    assert (program, flag, header, data) == ("curl", "-N", "-H", "-d")
    address = url.replace("127.0.0.1:8000", environ["HTTP"])
    request = urllib.request.Request(address, body.encode(), dict([kind.split(": ")]))
    with urllib.request.urlopen(request, timeout=60) as response:
        *events, end = [line for line in response.read().decode().split("\n\n") if line]
    assert end == "data: [DONE]"
    text = "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)
    done = subprocess.run(
        [Path(sys.executable).with_name("octavo"), "generate", json.loads(body)["prompt"], "--max-tokens", "16",
         "--temperature", "0"],
        env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert text == done.stdout.rstrip("\n")


FIRST_LOOK = {
    # By their last word: what each prints of services that have just answered somebody.
    "workers": r"smollm2",
    "tenants": r"anonymous",
    "check": r"every invariant holds",
}


@pytest.mark.parametrize("command", FIRST_LOOK)
def test_the_first_look_of_operators_shows_what_runs(environ: dict[str, str], command: str) -> None:
    (lines,) = [typed(block) for block in blocks_of("docs/operations.md") if "octavo workers" in block.text]
    (shown,) = [one for line in lines for one in parsed("", line, fenced=True) if one.words[1:] == [command]]
    arguments = [Path(sys.executable).with_name("octavo"), *shown.words[1:]]
    done = subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(FIRST_LOOK[command], done.stdout)
