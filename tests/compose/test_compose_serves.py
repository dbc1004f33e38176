"""The cpu profile on a real engine, as the README starts it: what it serves, and what its containers may do."""

import json
import re
import shlex
import subprocess
import time
import urllib.request

import pytest
from compose_project import REPOSITORY, Project, docker
from compose_streams import when_whole

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

SERVICES = ("kv_manager", "model_worker_cpu", "gateway")
PROMPT, TOKENS = "The history of the Roman Empire begins with", 16
LIMITS_MB = {"octavo/kv-manager": 120, "octavo/gateway": 400}


def over_grpc(project: Project) -> str:
    lines = project.run("client", "python", "/client/streams.py", "gateway:50050", str(TOKENS), PROMPT).splitlines()
    *pieces, end = map(json.loads, lines)
    assert end["code"] == "OK", end
    assert sum(len(piece["tokens"]) for piece in pieces) == TOKENS
    return "".join(piece["text"] for piece in pieces)


def over_http(project: Project) -> str:
    command = ("python", "/client/over_http.py", "gateway", "8000", str(TOKENS), PROMPT)
    return docker("exec", project.container("client"), *command)


def test_a_client_container_gets_one_text_both_ways(project: Project) -> None:
    text = over_grpc(project)
    assert text.strip()
    assert over_http(project) == text.strip()


def test_the_readmes_request_streams_text_to_this_machine(project: Project) -> None:
    section = (REPOSITORY / "README.md").read_text().split("## Containers", 1)[1]
    (command,) = re.findall(r"^curl .*?(?:[^\\]\n)", section, flags=re.MULTILINE | re.DOTALL)
    arguments = shlex.split(
        command.replace("\\\n", " ").replace("127.0.0.1:8000", project.environ["OCTAVO_HTTP_LISTEN"])
    )
    done = subprocess.run([*arguments, "--silent", "--fail"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events).strip()


def test_the_inspector_shows_both_workers_pools_to_this_machine(project: Project) -> None:
    address = project.environ["OCTAVO_HTTP_LISTEN"]
    with urllib.request.urlopen(f"http://{address}/inspect/pools", timeout=30) as response:
        document = json.load(response)
    hosts = {
        docker("inspect", "--format", "{{.Config.Hostname}}", one) for one in project.containers("model_worker_cpu")
    }
    assert {(pool["manager"], pool["pool"]) for pool in document["pools"]} == {
        ("kv_manager:50052", one) for one in hosts
    }
    assert document["tokens"] is False


def test_the_readmes_commands_name_what_there_is() -> None:
    section = (REPOSITORY / "README.md").read_text().split("## Containers", 1)[1].split("## ", 1)[0]
    commands = re.findall(r"docker compose[^`\n#]*", section)
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command)
        assert words[:2] == ["docker", "compose"]
        # What a profile on the command line has started, `docker compose down` does not know.
        assert "--profile" not in command


def test_two_replicas_have_pools_of_their_own_and_nothing_is_held_at_rest(project: Project) -> None:
    (found,) = when_whole(project, ("served", "workers", "sound"), 2, time.time(), 30.0).take(60.0)
    assert all(seconds is not None for seconds in found.values()), found


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_runs_as_nobody_and_cannot_write_to_its_image(project: Project, service: str) -> None:
    assert project.run(service, "id", "-u") == "10001"
    script = """
import pathlib, tempfile
for folder in ("/", "/opt/octavo", "/opt/app", "/usr/local", "/var"):
    try:
        pathlib.Path(folder, "left-behind").write_text("")
    except OSError as error:
        assert error.errno == 30, error  # EROFS
    else:
        raise SystemExit(f"{folder} is writable")
pathlib.Path(tempfile.gettempdir(), "scratch").write_text("")
status = pathlib.Path("/proc/self/status").read_text()
assert "CapEff:\\t0000000000000000" in status and "NoNewPrivs:\\t1" in status
"""
    project.run(service, "python", "-c", script)


@pytest.mark.parametrize("service", SERVICES)
def test_no_build_tool_is_left(project: Project, service: str) -> None:
    script = """
import importlib.util, shutil
tools = [name for name in ("gcc", "g++", "cc", "make", "git", "hatch") if shutil.which(name)]
assert not tools, tools
assert importlib.util.find_spec("hatchling") is None
"""
    project.run(service, "python", "-c", script)


def test_the_cpu_image_holds_the_cpu_kernels_and_no_cuda(project: Project) -> None:
    worker = project.container("model_worker_cpu")
    log = subprocess.run(["docker", "logs", worker], capture_output=True, text=True, check=True).stderr
    assert "cpu kernels on cpu" in log
    docker("exec", worker, "python", "-c", "import torch; assert torch.version.cuda is None")


@pytest.mark.parametrize("image", LIMITS_MB)
def test_an_image_is_as_small_as_it_says(engine: None, image: str) -> None:
    base, own = (int(docker("image", "inspect", "--format", "{{.Size}}", name)) for name in ("python:3.11-slim", image))
    print(f"\n{image}: {(own - base) / 1e6:.0f} MB on top of {base / 1e6:.0f} MB")
    assert (own - base) / 1e6 < LIMITS_MB[image]


def test_a_changed_line_of_code_moves_a_small_layer(engine: None) -> None:
    """The upper layer of each image is Octavo itself; what it needs lies below."""
    for image in ("octavo/kv-manager", "octavo/gateway", "octavo/model-worker:cpu"):
        rows = docker("history", "--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image)
        (own,) = [int(row.split()[0]) for row in rows.splitlines() if "/opt/app /opt/app" in row]
        assert own < 20e6, f"{image}: {own} bytes"
