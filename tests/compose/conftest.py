"""What the compose tests stand on: an engine, and images that `make compose-test` has built."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_project import Project


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine that answers, or a skip that says why there is none."""
    try:
        asked = subprocess.run(["docker", "compose", "ls"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("the docker command is not installed: make compose-test brings an engine up")
    if asked.returncode != 0:
        pytest.skip(f"no Docker engine with compose answers ({asked.stderr.strip()}): make compose-test brings one up")
    missing = [name for name in ("OCTAVO_MODEL", "OCTAVO_TEST_WHEELS") if name not in os.environ]
    if missing:
        pytest.skip(f"{', '.join(missing)} not set: run by make compose-test")


def free_address() -> str:
    """An address of this machine that nobody listens on, for a published port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def free_ports() -> dict[str, str]:
    """Variables that publish every port of one project where it is free."""
    names = ("OCTAVO_LISTEN", "OCTAVO_HTTP_LISTEN", "OCTAVO_INSPECT_LISTEN", "OCTAVO_PROMETHEUS_LISTEN")
    return {name: free_address() for name in names} | {"OCTAVO_SERVED_NAME": "smollm2"}


@pytest.fixture
def published() -> dict[str, str]:
    """Ports for a project of the test's own: other projects are up beside it."""
    return free_ports()


@pytest.fixture(scope="session")
def project(engine: None) -> Iterator[Project]:
    """The cpu profile with two workers, up and healthy; and a client beside it."""
    with Project("octavo-test", environ=free_ports()) as running:
        running.compose("up", "--wait", "--detach", "--no-build", "--scale", "model_worker_cpu=2")
        yield running


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that the services' user may enter: pytest's own are for their maker alone."""
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(folder.stat().st_mode | 0o055)
    return tmp_path
