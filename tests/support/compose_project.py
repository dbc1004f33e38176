"""Projects of `docker compose` on a real engine, for tests: started, broken and taken down by the docker command."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
TEST_FILE = "tests/compose/docker-compose.yml"


def docker(*arguments: str, seconds: float = 120.0) -> str:
    """What a docker command prints; an AssertionError with its complaint when it fails."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


class Lines:
    """The lines of a command that runs in a container, as they come."""

    def __init__(self, container: str, *command: str) -> None:
        self._process = subprocess.Popen(
            ["docker", "exec", container, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def take(self, seconds: float) -> Iterator[dict[str, Any]]:
        """JSON objects until the command's end, or an AssertionError when nothing comes for so long."""
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"nothing for {seconds} s") from None
            if line is None:
                assert self._process.stderr is not None
                complaint = self._process.stderr.read()
                assert self._process.wait() == 0, complaint
                return
            yield json.loads(line)


class Project:
    """One project: the repository's compose file with what a test adds to it.

    Args:
        name: of the project; containers and networks begin with it.
        files: compose files, relative to the repository.
        environ: variables of the files.
        profile: the one that is started.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[str | Path] = ("docker-compose.yml", TEST_FILE),
        environ: Mapping[str, str] | None = None,
        profile: str = "cpu",
    ) -> None:
        self.name = name
        self.environ = dict(environ or {})
        self._files = [str(REPOSITORY / file) for file in files]
        self._profile = profile

    def compose(self, *arguments: str, seconds: float = 600.0) -> str:
        """What a `docker compose` command of this project prints."""
        command = ["docker", "compose", "-p", self.name, "--project-directory", str(REPOSITORY)]
        command += [argument for file in self._files for argument in ("-f", file)]
        done = subprocess.run(
            [*command, "--profile", self._profile, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"docker compose {' '.join(arguments)}: {done.stderr}\n{self.logs_tail()}"
        return done.stdout.strip()

    def script(self, *command: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """How a script of the repository ended that calls `docker compose` on this project."""
        of_compose = {
            "COMPOSE_PROJECT_NAME": self.name,
            "COMPOSE_FILE": os.pathsep.join(self._files),
            "COMPOSE_PROFILES": self._profile,
        }
        return subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **self.environ, **of_compose},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def logs_tail(self, lines: int = 15) -> str:
        """The last log lines of every container, for the message of a failure."""
        containers = docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={self.name}").split()
        told = []
        for container in containers:
            done = subprocess.run(["docker", "logs", "--tail", str(lines), container], capture_output=True, check=False)
            told.append(f"--- {self.name_of(container)}\n{done.stdout.decode()}{done.stderr.decode()}")
        return "\n".join(told)

    @staticmethod
    def name_of(container: str) -> str:
        return docker("inspect", "--format", "{{.Name}}", container).removeprefix("/")

    def containers(self, service: str) -> list[str]:
        """Ids of a service's containers, running or not, by their numbers."""
        labels = (f"label=com.docker.compose.project={self.name}", f"label=com.docker.compose.service={service}")
        filters = [argument for label in labels for argument in ("--filter", label)]
        lines = docker("ps", "--all", *filters, "--format", '{{.Label "com.docker.compose.container-number"}} {{.ID}}')
        return [line.split()[1] for line in sorted(lines.splitlines(), key=lambda line: int(line.split()[0]))]

    def container(self, service: str, place: int = 0) -> str:
        return self.containers(service)[place]

    def run(self, service: str, *command: str, seconds: float = 120.0) -> str:
        """What a command prints in a service's first container."""
        return docker("exec", self.container(service), *command, seconds=seconds)

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")

    def __enter__(self) -> "Project":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.logs_tail(40))
        if "KEEP" not in os.environ:
            self.down()


def processes(container: str) -> list[int]:
    """Process ids, as this machine counts them, of all that runs in a container: its init first."""
    rows = docker("top", container, "-o", "pid").splitlines()[1:]
    return [int(row) for row in rows]


def kill_main(container: str) -> int:
    """kill -9 of the service itself, as the kernel does when memory runs out: not of the init that watches it."""
    init = int(docker("inspect", "--format", "{{.State.Pid}}", container))
    children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    (service,) = map(int, children)
    os.kill(service, signal.SIGKILL)
    return service


def wait_until(holds: Any, seconds: float, what: str) -> float:
    """Ask until it holds. Returns the seconds that took."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() < started + seconds, f"not within {seconds} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - started
