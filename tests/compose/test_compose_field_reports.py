"""What others have met with containers, by the reports' numbers: B78, B89, B90.

B78  orphans hold the device after a crash
B89  a health gate that never opens while a model loads, and restarts without end
B90  an offline start that asks a hub all the same
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from compose_faults import health
from compose_project import TEST_FILE, Project, docker, kill_main, processes, wait_until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

GONE_SECONDS, READY_SECONDS = 5.0, 90.0
RETRIES = 3
FILES = ("docker-compose.yml", TEST_FILE)


def alive(pid: int) -> bool:
    """Whether the process is there and no corpse."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_healthy(container: str) -> None:
    wait_until(lambda: health(container) == "healthy", READY_SECONDS, "healthy")


class TestB78OrphansHoldTheDevice:
    @pytest.fixture
    def worker(self, project: Project) -> str:
        """A healthy worker with a child that does not listen to anybody."""
        container = project.container("model_worker_cpu")
        wait_healthy(container)
        deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
        docker("exec", "--detach", container, "python", "-c", deaf)
        # Init, the worker, its child.
        wait_until(lambda: len(processes(container)) == 3, GONE_SECONDS, "the child")
        return container

    def test_a_crash_leaves_nobody_and_the_restart_succeeds(self, worker: str) -> None:
        before = processes(worker)
        kill_main(worker)
        wait_until(lambda: not any(map(alive, before)), GONE_SECONDS, "all of its processes gone")
        wait_until(lambda: docker("inspect", "--format", "{{.State.Running}}", worker) == "true", 10, "started again")
        wait_healthy(worker)

    def test_a_removed_container_leaves_nobody_and_another_takes_its_place(self, project: Project, worker: str) -> None:
        before = processes(worker)
        docker("rm", "--force", worker)
        wait_until(lambda: not any(map(alive, before)), GONE_SECONDS, "all of its processes gone")
        project.compose("up", "--detach", "--no-build", "--wait", "--scale", "model_worker_cpu=2")
        assert worker not in project.containers("model_worker_cpu")


class TestB89HealthGateAndRestartLoop:
    @pytest.fixture
    def gate(self, open_folder: Path) -> Path:
        """A folder; the worker begins to load when there is a file `open` in it."""
        return open_folder

    @pytest.fixture
    def slow(self, engine: None, gate: Path, published: dict[str, str]) -> Iterator[Project]:
        waits = 'until [ -e /gate/open ]; do sleep 0.2; done; exec python -m model_worker "$$@"'
        worker = {"entrypoint": ["sh", "-c", waits, "model_worker"], "volumes": [f"{gate}:/gate:ro"]}
        file = gate / "compose.yml"
        file.write_text(yaml.safe_dump({"services": {"model_worker_cpu": worker}}))
        with Project("octavo-slow", (*FILES, file), published) as project:
            yield project

    def test_a_gateway_is_up_while_a_model_loads_and_ready_when_it_has(self, slow: Project, gate: Path) -> None:
        slow.compose("up", "--detach", "--no-build")
        gateway = slow.container("gateway")
        wait_until(lambda: self.status(slow, "livez") == 200, 30, "the gateway's process answers")
        assert self.status(slow, "health") == 503
        # More failed checks than a service may have that is not starting.
        log = "{{len .State.Health.Log}}"
        wait_until(lambda: int(docker("inspect", "--format", log, gateway)) > RETRIES, 60, "several health checks")
        assert {health(gateway), health(slow.container("model_worker_cpu"))} == {"starting"}
        assert self.status(slow, "health") == 503
        (gate / "open").touch()
        wait_healthy(gateway)
        assert self.status(slow, "health") == 200

    @staticmethod
    def status(project: Project, page: str) -> int:
        script = f"""
import http.client
connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=5)
connection.request("GET", "/{page}")
print(connection.getresponse().status)
"""
        command = ["docker", "exec", project.container("gateway"), "python", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return int(done.stdout or 0)

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            pytest.param({"OCTAVO_WORKER_BLOCK_SIZE": "0"}, "OCTAVO_WORKER_BLOCK_SIZE", id="setting"),
            pytest.param({"OCTAVO_WORKER_DEVICE": "cuda"}, "cuda", id="device"),
        ],
    )
    def test_a_worker_that_cannot_start_gives_up_and_says_why(
        self, engine: None, published: dict[str, str], tmp_path: Path, wrong: dict[str, str], said: str
    ) -> None:
        restarts = 2
        file = tmp_path / "compose.yml"
        file.write_text(yaml.safe_dump({"services": {"model_worker_cpu": {"environment": wrong}}}))
        environ = {**published, "OCTAVO_RESTART": f"on-failure:{restarts}"}
        with Project("octavo-wrong", (*FILES, file), environ) as project:
            project.compose("up", "--detach", "--no-build", "kv_manager", "model_worker_cpu")
            worker = project.container("model_worker_cpu")

            def state() -> list[str]:
                return docker("inspect", "--format", "{{.State.Status}} {{.RestartCount}}", worker).split()

            wait_until(lambda: state() == ["exited", str(restarts)], READY_SECONDS, "it gives up")
            done = subprocess.run(["docker", "logs", worker], capture_output=True, text=True, check=True)
            last = (done.stdout + done.stderr).strip().splitlines()[-1]
            assert said in last, last
            assert "Traceback" not in done.stderr


class TestB90OfflineStart:
    RESOLVER = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as listening:
    listening.bind(("127.0.0.1", 53))
    print("listening", flush=True)
    while True:
        asked, _ = listening.recvfrom(512)
        # The question's name: labels with their lengths, after a header of 12 bytes.
        labels, place = [], 12
        while asked[place]:
            labels.append(asked[place + 1 : place + 1 + asked[place]].decode())
            place += 1 + asked[place]
        print("asked", ".".join(labels), flush=True)
"""

    @pytest.fixture
    def offline(self, engine: None, open_folder: Path) -> Iterator[Project]:
        """All services in one network namespace with nothing but a loopback, and a resolver there that only listens."""
        resolv = open_folder / "resolv.conf"
        resolv.write_text("nameserver 127.0.0.1\noptions attempts:1 timeout:1\n")
        resolv.chmod(0o644)
        program = open_folder / "resolver.py"
        program.write_text(self.RESOLVER)
        file = open_folder / "compose.yml"
        file.write_text(f"""
services:
  resolver:
    image: octavo/kv-manager
    profiles: [cpu]
    user: root
    init: true
    network_mode: none
    entrypoint: [python, -u, /resolver.py]
    healthcheck: {{test: [CMD, "true"], start_period: 10s, start_interval: 1s}}
    volumes: ["{program}:/resolver.py:ro"]
  kv_manager:
    network_mode: service:resolver
    ports: !reset []
    volumes: ["{resolv}:/etc/resolv.conf:ro"]
  model_worker_cpu:
    network_mode: service:resolver
    networks: !reset {{}}
    volumes: ["{resolv}:/etc/resolv.conf:ro"]
    command: [--listen=127.0.0.1:50051, --manager=127.0.0.1:50052, --model=/models/model, --served-name=smollm2]
  gateway:
    network_mode: service:resolver
    ports: !reset []
    volumes: ["{resolv}:/etc/resolv.conf:ro"]
    command: [--listen=127.0.0.1:50050, --workers=127.0.0.1:50051, --managers=127.0.0.1:50052]
  client:
    network_mode: service:resolver
    volumes: ["{resolv}:/etc/resolv.conf:ro"]
""")
        with Project("octavo-offline", (*FILES, file)) as project:
            yield project

    def asked(self, project: Project) -> list[str]:
        lines = docker("logs", project.container("resolver")).splitlines()
        assert "listening" in lines
        return [line.removeprefix("asked ") for line in lines if line.startswith("asked ")]

    def test_a_mounted_folder_is_enough_and_nobody_is_asked_for_a_name(self, offline: Project) -> None:
        offline.compose("up", "--detach", "--no-build", "--wait")
        lines = offline.run("client", "python", "/client/streams.py", "127.0.0.1:50050", "8", "Once upon a time")
        *pieces, end = map(json.loads, lines.splitlines())
        assert end["code"] == "OK"
        assert sum(len(piece["tokens"]) for piece in pieces) == 8
        assert self.asked(offline) == []
        # Whoever asks is heard.
        lookup = "import socket; socket.getaddrinfo('control.example', 80)"
        command = ["docker", "exec", offline.container("model_worker_cpu"), "python", "-c", lookup]
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0
        assert set(self.asked(offline)) == {"control.example"}
