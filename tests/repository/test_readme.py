"""Every command of the README, run as it stands there; only addresses and the environment's folder differ."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
pytestmark = [pytest.mark.e2e, pytest.mark.model]

# Blocks that another test covers: containers by tests/repository/test_containers.py.
COVERED_ELSEWHERE = {"sh"}
LISTENERS = ("port", "http-port", "worker-port", "manager-port", "worker-metrics-port", "manager-metrics-port")
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
    process = subprocess.Popen(
        [command[0], "-o", str(stamp), *command[1:], *variables],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process:
        ready = next((line for line in process.stdout if line.startswith("{")), None)
        assert ready is not None, f"make serve ended with {process.wait()}"
        fields = dict(re.findall(r'"(\w+)": "([^"]*)"', ready))
        yield {**os.environ, "OCTAVO_ADDRESS": fields["grpc"], "OCTAVO_MANAGER_ADDRESS": fields["manager"]}
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does in a terminal
        process.wait(60)


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


def test_options_the_readme_names_in_passing_exist() -> None:
    octavo = str(Path(sys.executable).with_name("octavo"))
    named = set(re.findall(r"`octavo (\w+)[^`]*`", README))
    text = subprocess.run([octavo, "--help"], capture_output=True, text=True, check=True).stdout
    assert {"serve", "chat"} <= named
    assert all(re.search(rf"\b{name}\b", text) for name in named)
