"""The wheel, installed as users install it: into empty environments, one extra at a time."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["kv_manager", "model_worker", "gateway", "kernels", "cli", "service"]
pytestmark = pytest.mark.e2e

Environment = Callable[..., Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (found,) = folder.glob("octavo-*.whl")
    return found


def tracked(pattern: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def make_environment(folder: Path, *requirements: str, constraints: str = "cpu", python: str = sys.executable) -> Path:
    """A virtual environment with ``requirements``; returns its interpreter."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    interpreter = folder / "bin" / "python"
    pins = ["-c", str(ROOT / "constraints" / f"{constraints}.txt")] if constraints else []
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *pins, *requirements], check=True)
    return interpreter


def run(interpreter: Path, *arguments: str) -> str:
    """Stdout; the environment sees neither this repository nor the tests' packages."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [interpreter, *arguments], cwd=interpreter.parents[1], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(interpreter: Path) -> set[str]:
    rows = json.loads(run(interpreter, "-m", "pip", "list", "--format", "json"))
    return {row["name"].lower() for row in rows}


def test_the_wheel_holds_every_tracked_module_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {path for package in PACKAGES for path in tracked(package) if not path.endswith("Dockerfile")}
    expected |= {path.removeprefix("protos/") for path in tracked("protos/octavo")}
    assert expected <= names, sorted(expected - names)
    # Files not committed yet may be there while somebody works; anything else may not.
    assert {name.split("/")[0] for name in names} == {*PACKAGES, "octavo"}
    assert not [name for name in names if name.endswith("Dockerfile")]


def test_alone_it_is_the_client_stubs(wheel: Path, tmp_path: Path) -> None:
    interpreter = make_environment(tmp_path / "env", str(wheel))
    assert installed(interpreter) <= {"octavo", "grpcio", "protobuf", "typing_extensions", "pip", "setuptools"}
    run(
        interpreter,
        "-c",
        "from octavo.gateway.v1 import gateway_pb2_grpc; from octavo.kv.v1 import kv_manager_pb2_grpc; "
        "from octavo.worker.v1 import worker_pb2_grpc",
    )


def test_stubs_work_with_the_oldest_allowed_runtime(wheel: Path, tmp_path: Path) -> None:
    oldest = ["grpcio==1.78.0", "protobuf==6.31.1"]
    interpreter = make_environment(tmp_path / "env", str(wheel), *oldest, constraints="")
    versions = "from importlib.metadata import version; print(version('grpcio'), version('protobuf'))"
    assert run(interpreter, "-c", versions).split() == ["1.78.0", "6.31.1"]
    call = (
        "import grpc; from octavo.gateway.v1 import gateway_pb2 as g, gateway_pb2_grpc as s; "
        "from octavo.kv.v1 import kv_manager_pb2_grpc; from octavo.worker.v1 import worker_pb2_grpc; "
        "request = g.GenerateRequest(prompt='x', options=g.GenerateOptions(temperature=0)); "
        "print(g.GenerateRequest.FromString(request.SerializeToString()) == request, "
        "s.GatewayServiceStub(grpc.insecure_channel('127.0.0.1:1')).Generate is not None)"
    )
    assert run(interpreter, "-c", call).split() == ["True", "True"]


def test_the_kv_manager_installs_little(wheel: Path, tmp_path: Path) -> None:
    interpreter = make_environment(tmp_path / "env", f"{wheel}[kv-manager]")
    assert "--listen" in run(interpreter, "-m", "kv_manager", "--help")
    heavy = {"torch", "numpy", "transformers", "tokenizers", "pydantic", "typer", "rich", "jinja2"}
    assert not installed(interpreter) & heavy


def test_the_gateway_needs_no_torch(wheel: Path, tmp_path: Path) -> None:
    interpreter = make_environment(tmp_path / "env", f"{wheel}[gateway]")
    assert "--workers" in run(interpreter, "-m", "gateway", "--help")
    run(interpreter, "-c", "import gateway.app")
    assert not installed(interpreter) & {"torch", "numpy", "transformers"}


def test_the_command_talks_to_services_elsewhere(wheel: Path, tmp_path: Path) -> None:
    interpreter = make_environment(tmp_path / "env", f"{wheel}[cli]")
    octavo = str(interpreter.parent / "octavo")
    assert "generate" in run(interpreter, octavo, "--help")
    # Fetching converts, and that needs the worker: one line says so.
    fetch = subprocess.run(
        [octavo, "models", "fetch", "smollm2"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert fetch.returncode == 1
    assert "octavo[worker]" in fetch.stderr
    assert fetch.stderr.count("\n") == 1


@pytest.mark.soak
@pytest.mark.timeout(900)  # installs torch, which `make serve` does too
def test_the_worker_has_all_it_imports(wheel: Path, tmp_path: Path) -> None:
    interpreter = make_environment(tmp_path / "env", f"{wheel}[worker]")
    assert "--model" in run(interpreter, "-m", "model_worker", "--help")
    # transformers takes any distribution named `kernels` for its own; ours must not upset it.
    run(interpreter, "-c", "import model_worker.app, kernels; from transformers.models.llama import modeling_llama")


def python_312() -> str | None:
    for candidate in ("python3.12", *map(str, Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12"))):
        try:
            done = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        if done.returncode == 0:
            return candidate
    return None


def test_manager_gateway_and_command_on_python_312(wheel: Path, tmp_path: Path) -> None:
    python = python_312()
    if python is None:
        pytest.skip("no Python 3.12 on this machine")
    interpreter = make_environment(tmp_path / "env", f"{wheel}[kv-manager,gateway,cli]", python=python)
    assert run(interpreter, "--version").startswith("Python 3.12")
    for module in ("kv_manager", "gateway", "cli.main"):
        assert "--help" in run(interpreter, "-m", module, "--help")
    run(interpreter, "-c", "import kv_manager.__main__, gateway.app, cli.run_stack, cli.pool_views, cli.conversation")
