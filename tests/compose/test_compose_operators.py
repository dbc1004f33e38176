"""The commands of docs/operations.md in the gateway's container: every worker can be called by its pool's name."""

import re
import shlex
from collections.abc import Iterator

import pytest
from compose_faults import READY_SECONDS, health
from compose_project import REPOSITORY, Project, docker, wait_until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

PAGE = (REPOSITORY / "docs" / "operations.md").read_text()
COMMANDS = re.findall(r"^docker compose exec (gateway python -m cli .*)$", PAGE, flags=re.MULTILINE)
PRINTS = {
    "workers": "HOST +0 of",
    "drain": "worker HOST:50051 drains: nothing runs any more",
    "check": "every invariant holds",
    "inspect": r"pool +HOST, epoch",
}


@pytest.fixture(scope="module")
def worker(project: Project) -> Iterator[str]:
    """The container id of a worker, which is drained and then started again."""
    container = project.container("model_worker_cpu", 1)
    wait_until(lambda: health(container) == "healthy", READY_SECONDS, "healthy")
    yield container
    docker("restart", container)
    wait_until(lambda: health(container) == "healthy", READY_SECONDS, "healthy")


def test_every_command_is_run_here() -> None:
    assert [shlex.split(command)[4] for command in COMMANDS] == list(PRINTS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reaches_whom_it_asks(project: Project, worker: str, command: str) -> None:
    words = shlex.split(command.replace("HOST", worker))
    said = project.run(words[0], *words[1:])
    assert re.search(PRINTS[words[4]].replace("HOST", worker), said), said
