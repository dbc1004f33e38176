"""Too few extras installed: one line names the extra, for the command and for each service."""

import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
# Libraries that only the extras bring, by what a folder of installed packages calls them.
WORKER = ("torch", "safetensors")
GATEWAY = ("jinja2", "pydantic_settings", "starlette", "uvicorn")
MANAGER = ("grpc_health", "prometheus_client")
COMMAND = ("typer",)


def run_without(hidden: Sequence[str], folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m module`` where every installed library but the hidden ones can be imported."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name not in hidden and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    paths = [folder, ROOT, ROOT / "protos"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    # -S leaves out the environment's own folder of packages.
    command = [sys.executable, "-S", "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("hidden", "module", "arguments", "missing", "extra"),
    [
        ((*COMMAND, *WORKER, *GATEWAY, *MANAGER), "cli.main", ["generate", "hi"], "typer", "octavo[cli]"),
        ((*COMMAND, *WORKER, *GATEWAY, *MANAGER), "cli", ["generate", "hi"], "typer", "octavo[cli]"),
        ((*WORKER, *GATEWAY), "cli.main", ["serve"], ", ".join(sorted((*WORKER, *GATEWAY))), "octavo[demo]"),
        ((*WORKER, *GATEWAY), "cli.main", ["inspect", "--web"], "uvicorn", "octavo[gateway]"),
        ((*WORKER, *GATEWAY), "gateway", [], "jinja2", "octavo[gateway]"),
        ((*WORKER, *GATEWAY), "model_worker", ["--model", "m"], "pydantic_settings", "octavo[worker]"),
        (WORKER, "model_worker", ["--model", "MODEL"], "torch", "octavo[worker]"),
        ((*WORKER, *GATEWAY, *MANAGER), "kv_manager", [], "prometheus_client", "octavo[kv-manager]"),
    ],
)
def test_what_is_missing_is_one_line(
    tmp_path: Path, hidden: Sequence[str], module: str, arguments: list[str], missing: str, extra: str
) -> None:
    model = tmp_path / "model"  # passes for one as long as no library reads it
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (model / "model.safetensors").touch()
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    done = run_without(hidden, libraries, module, *(word.replace("MODEL", str(model)) for word in arguments))
    assert (done.returncode, done.stdout) == (1, "")
    assert missing in done.stderr
    assert f"pip install '{extra}'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_and_the_manager_need_no_more_than_their_extra(tmp_path: Path) -> None:
    assert run_without((*WORKER, *GATEWAY), tmp_path, "cli.main", "--help").returncode == 0


@pytest.mark.parametrize("command", [["workers"], ["drain", "worker"]])
def test_the_gateways_image_which_has_no_worker_can_run_an_operators_commands(
    tmp_path: Path, command: list[str]
) -> None:
    """As ``docker compose exec gateway python -m cli ...`` does."""
    with socket.socket() as taken:  # bound, and nobody listens: a call is refused
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_without(WORKER, tmp_path, "cli", *command, "--address", address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("octavo: ")
    assert address in done.stderr
