"""What happens to containers under load: each way to lose one, as an operator or a machine does it."""

import json
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from compose_project import Project, docker, kill_main, wait_until

FROZEN_SECONDS = 5.0
READY_SECONDS = 90.0
# What the compose file of the tests gives running streams, and then some.
STOP_SECONDS = 85
# Two workers, each to load beside sixteen streams and then to drain.
ROLL_SECONDS = 2 * (READY_SECONDS + STOP_SECONDS)
SERVICES = ("kv_manager", "model_worker_cpu", "gateway")


class Fault(NamedTuple):
    """One way to lose a service for a while.

    Attributes:
        ends_streams: the codes that streams may end with; OK alone where a loss may not be seen.
        act: does it to a container of the project that the dice choose, and returns when it is over.
    """

    name: str
    ends_streams: frozenset[str]
    act: Callable[[Project, Random], None]


def kill(service: str) -> Callable[[Project, Random], None]:
    """kill -9; the restart policy brings it back."""

    def act(project: Project, dice: Random) -> None:
        kill_main(dice.choice(project.containers(service)))

    return act


def pause(service: str) -> Callable[[Project, Random], None]:
    """The freezer: the process neither runs nor ends, and its connections stay open."""

    def act(project: Project, dice: Random) -> None:
        container = dice.choice(project.containers(service))
        docker("pause", container)
        time.sleep(FROZEN_SECONDS)
        docker("unpause", container)

    return act


def disconnect(service: str) -> Callable[[Project, Random], None]:
    """The network goes without a word to either end, and comes back, perhaps with another address."""

    def act(project: Project, dice: Random) -> None:
        container, network = dice.choice(project.containers(service)), f"{project.name}_default"
        inspected = json.loads(docker("inspect", container))[0]["NetworkSettings"]["Networks"][network]
        aliases = [argument for name in inspected["Aliases"] for argument in ("--alias", name)]
        docker("network", "disconnect", network, container)
        time.sleep(FROZEN_SECONDS)
        docker("network", "connect", *aliases, network, container)

    return act


def restart(service: str) -> Callable[[Project, Random], None]:
    """One container after another: it drains, and the next one waits until it is healthy again."""

    def act(project: Project, dice: Random) -> None:
        for container in project.containers(service):
            docker("restart", "--timeout", str(STOP_SECONDS), container)
            wait_until(lambda container=container: health(container) == "healthy", READY_SECONDS, f"{service} healthy")

    return act


def swap_manager(project: Project, dice: Random) -> None:
    """Today's KV manager for that of an older release, or back."""
    older = project.environ.get("OCTAVO_TAG_KV_MANAGER") == "older"
    project.environ["OCTAVO_TAG_KV_MANAGER"] = "latest" if older else "older"
    project.compose("up", "--detach", "--no-deps", "--no-build", "kv_manager")


def swap_workers(project: Project, dice: Random) -> None:
    """Both workers for another build, as an operator does it: the other tag, and deploy/roll.sh."""
    docker("tag", "octavo/model-worker:cpu", "octavo/model-worker:next")
    next_one = project.environ.get("OCTAVO_TAG_MODEL_WORKER_CPU") == "next"
    project.environ["OCTAVO_TAG_MODEL_WORKER_CPU"] = "cpu" if next_one else "next"
    done = project.script("deploy/roll.sh", "model_worker_cpu", seconds=ROLL_SECONDS)
    assert done.returncode == 0, done.stderr


def health(container: str) -> str:
    return docker("inspect", "--format", "{{.State.Health.Status}}", container)


OK, LOST = frozenset({"OK"}), frozenset({"UNAVAILABLE"})
FAULTS = (
    Fault("kill -9 kv_manager", OK, kill("kv_manager")),
    Fault("kill -9 a model_worker", OK, kill("model_worker_cpu")),
    Fault("kill -9 gateway", LOST, kill("gateway")),
    *(Fault(f"pause {name} 5 s", OK, pause(name)) for name in SERVICES),
    Fault("disconnect kv_manager 5 s", OK, disconnect("kv_manager")),
    Fault("disconnect a model_worker 5 s", OK, disconnect("model_worker_cpu")),
    # Its clients' connections may survive, if its address does.
    Fault("disconnect gateway 5 s", OK | LOST, disconnect("gateway")),
    *(Fault(f"rolling restart of {name}", OK, restart(name)) for name in SERVICES),
    Fault("another build of kv_manager", OK, swap_manager),
    Fault("another build of model_worker_cpu", OK, swap_workers),
)
