"""`docker compose config` takes every combination of profiles and files, and refuses what would not run."""

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compose_project import REPOSITORY

pytestmark = [pytest.mark.compose, pytest.mark.usefixtures("plugin")]

PROFILES = ("gpu", "cpu", "monitoring")
OF_PROFILE = {"gpu": {"model_worker"}, "cpu": {"model_worker_cpu"}, "monitoring": {"prometheus", "grafana"}}
ALWAYS = {"kv_manager", "gateway"}
OVERLAYS = ("", "deploy/compose.tls.yml", "deploy/compose.gpus.yml")
COMBINATIONS = [chosen for size in range(len(PROFILES) + 1) for chosen in itertools.combinations(PROFILES, size)]


@pytest.fixture(scope="module")
def plugin() -> None:
    """The compose plugin; no engine is asked."""
    try:
        found = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        found = False
    if not found:
        pytest.skip("docker compose is not installed: make compose-test brings it")


def config(
    *profiles: str, overlay: str = "", env_file: str = "/dev/null", **variables: str
) -> subprocess.CompletedProcess[str]:
    """The whole document as compose understands it, in JSON; nothing of this machine's environment is in it."""
    files = [argument for file in ("docker-compose.yml", overlay) if file for argument in ("-f", file)]
    chosen = [argument for profile in profiles for argument in ("--profile", profile)]
    # What finds the command and its plugins stays.
    kept = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout.splitlines()
    environ = dict(line.split("=", 1) for line in kept if line.startswith(("PATH=", "HOME=", "DOCKER_")))
    return subprocess.run(
        ["docker", "compose", "--env-file", env_file, *files, *chosen, "config", "--format", "json"],
        cwd=REPOSITORY,
        env={**environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def services(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower(), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("profiles", COMBINATIONS, ids="+".join)
def test_every_combination_of_profiles_is_valid(profiles: tuple[str, ...], overlay: str) -> None:
    found = services(config(*profiles, overlay=overlay, OCTAVO_MODEL="./models/smollm2"))
    expected = ALWAYS.union(*(OF_PROFILE[profile] for profile in profiles))
    if "gpus" in overlay and "gpu" in profiles:
        expected |= {"model_worker_1"}
    assert set(found) == expected


def test_without_an_env_file_it_says_what_is_missing() -> None:
    done = config("gpu")
    assert done.returncode != 0
    assert "cp .env.example .env" in done.stderr


def test_the_example_is_a_whole_env_file_and_takes_the_gpu() -> None:
    assert set(services(config(env_file=".env.example"))) == ALWAYS | {"model_worker"}


@pytest.mark.parametrize("profiles", ["cpu", "cpu,monitoring"])
def test_profiles_of_the_env_file_are_those_of_every_command(profiles: str, tmp_path: Path) -> None:
    env = tmp_path / "env"
    env.write_text((REPOSITORY / ".env.example").read_text().replace("=gpu\n", f"={profiles}\n"))
    expected = ALWAYS.union(*(OF_PROFILE[profile] for profile in profiles.split(",")))
    assert set(services(config(env_file=str(env)))) == expected


def test_the_defaults_are_those_of_the_example() -> None:
    bare = config("cpu", "monitoring", OCTAVO_MODEL="./models/smollm2", OCTAVO_SERVED_NAME="smollm2")
    example = config("cpu", "monitoring", env_file=".env.example", OCTAVO_TENANTS="/dev/null")
    found, told = services(bare), services(example)
    # Where a folder of tenants is named, even an empty one, the services are told to read it: nothing else differs.
    for document in (found, told):
        for service in document.values():
            service.get("environment", {}).pop("OCTAVO_GATEWAY_TENANTS", None)
            service.get("environment", {}).pop("OCTAVO_WORKER_TENANTS", None)
    assert found == told


def test_the_folder_of_the_tenants_reaches_the_services() -> None:
    nobody = services(config("cpu", OCTAVO_MODEL="m"))
    assert nobody["gateway"]["environment"]["OCTAVO_GATEWAY_TENANTS"] == ""
    found = services(config("gpu", "cpu", OCTAVO_MODEL="m", OCTAVO_TENANTS="./tenants"))
    for name in ("gateway", "model_worker", "model_worker_cpu"):
        mounts = {mount["target"]: mount["source"] for mount in found[name]["volumes"]}
        folder = mounts["/etc/octavo/tenants"]
        assert Path(folder) == REPOSITORY / "tenants"
        (file,) = [value for key, value in found[name]["environment"].items() if key.endswith("_TENANTS")]
        assert file == "/etc/octavo/tenants/tenants.toml"


@pytest.mark.parametrize("worker", ["model_worker", "model_worker_cpu"])
def test_the_number_of_workers_is_kept_in_the_env_file(worker: str) -> None:
    profile = "cpu" if worker.endswith("cpu") else "gpu"
    assert services(config(profile, OCTAVO_MODEL="m"))[worker]["scale"] == 1
    assert services(config(profile, OCTAVO_MODEL="m", OCTAVO_WORKER_REPLICAS="3"))[worker]["scale"] == 3


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_inspector_shows_the_projects_manager_unless_told_otherwise(overlay: str) -> None:
    name = "OCTAVO_GATEWAY_INSPECT_MANAGERS"
    usual = services(config("cpu", overlay=overlay, OCTAVO_MODEL="m"))
    assert usual["gateway"]["environment"][name] == "kv_manager:50052"
    other = services(config("cpu", overlay=overlay, OCTAVO_MODEL="m", OCTAVO_INSPECT_MANAGERS="10.0.0.1:50052"))
    assert other["gateway"]["environment"][name] == "10.0.0.1:50052"


def test_each_worker_of_a_node_with_two_gpus_has_its_own() -> None:
    replicas = {"OCTAVO_MODEL": "m", "OCTAVO_WORKER_REPLICAS": "2"}
    found = services(config("gpu", overlay="deploy/compose.gpus.yml", **replicas))
    # OCTAVO_WORKER_REPLICAS would give each GPU as many.
    assert [found[name]["scale"] for name in ("model_worker", "model_worker_1")] == [1, 1]
    devices = [
        device["device_ids"]
        for name in ("model_worker", "model_worker_1")
        for device in found[name]["deploy"]["resources"]["reservations"]["devices"]
    ]
    assert devices == [["0"], ["1"]]
    assert found["model_worker_1"]["networks"]["default"]["aliases"] == ["model_worker"]
