"""Dockerfiles and docker-compose.yml, as far as they can be checked without a Docker engine."""

import fnmatch
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ["kv_manager", "model_worker", "gateway"]
GRPC_PORTS = {"gateway": 50050, "model_worker": 50051, "model_worker_cpu": 50051, "kv_manager": 50052}
pytestmark = pytest.mark.unit


def instructions(service: str) -> list[tuple[str, str]]:
    """(INSTRUCTION, rest) of a Dockerfile, continuation lines joined."""
    text = (ROOT / service / "Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def final_stage(service: str) -> list[tuple[str, str]]:
    steps = instructions(service)
    last = max(index for index, (word, _) in enumerate(steps) if word == "FROM")
    return steps[last:]


def build_arguments(service: str) -> dict[str, str]:
    return dict(rest.split("=", 1) for word, rest in instructions(service) if word == "ARG")


@cache
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def defaults() -> dict[str, str]:
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def services_of(profile: str) -> set[str]:
    return {name for name, service in compose()["services"].items() if profile in service.get("profiles", [profile])}


@cache
def flags_of(module: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(re.findall(r"--[a-z][a-z-]+", done.stdout))


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_copied_exists_and_is_not_ignored(service: str) -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copies = [rest.split() for word, rest in instructions(service) if word == "COPY" and "--from" not in rest]
    sources = {source for words in copies for source in words[:-1]}
    assert {"pyproject.toml", service, "service", "protos"} <= sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed), f"{source} is ignored"


@pytest.mark.parametrize("service", SERVICES)
def test_every_package_of_the_wheel_is_copied(service: str) -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = " ".join(rest for word, rest in instructions(service) if word == "COPY")
    assert all(package.split("/")[0] in copied for package in wheel["packages"])


@pytest.mark.parametrize("service", SERVICES)
def test_extras_and_constraints_exist(service: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    commands = " ".join(rest for word, rest in instructions(service) if word == "RUN")
    in_compose = [entry.get("build", {}).get("args", {}) for entry in compose()["services"].values()]
    variants = [build_arguments(service)]
    if service == "model_worker":
        variants += [{**variants[0], **given} for given in in_compose if "EXTRAS" in given]
        assert {variant["EXTRAS"] for variant in variants} == {"worker,cuda", "worker"}
    for variant in variants:
        command = re.sub(r"\$\{(\w+)\}", lambda match, variant=variant: variant[match[1]], commands)
        (extras,) = re.findall(r"\.\[([\w,-]+)\]", command)
        (constraints,) = re.findall(r"-c \"?(constraints/[\w.]+)", command)
        assert set(extras.split(",")) <= set(known)
        assert (ROOT / constraints).is_file()


@pytest.mark.parametrize("service", SERVICES)
def test_the_image_is_slim_and_runs_as_nobody_in_particular(service: str) -> None:
    final = final_stage(service)
    assert final[0] == ("FROM", "python:3.11-slim")
    commands = [rest for word, rest in final if word == "RUN"]
    assert not [command for command in commands if re.search(r"\b(pip|apt|apt-get|gcc|make)\b", command)]
    assert [rest for word, rest in final if word == "COPY"] == ["--from=build /opt/octavo /opt/octavo"]
    words = [word for word, _ in final]
    assert dict(final)["USER"] == "octavo"
    assert words.index("USER") < words.index("ENTRYPOINT")


@pytest.mark.parametrize("service", SERVICES)
def test_the_image_starts_its_service_and_asks_for_its_health(service: str) -> None:
    final = dict(final_stage(service))
    assert yaml.safe_load(final["ENTRYPOINT"]) == ["python", "-m", service]
    flags = [word for word in yaml.safe_load(final["CMD"]) if word.startswith("--")]
    assert set(flags) <= flags_of(service)
    assert f"0.0.0.0:{GRPC_PORTS[service]}" in final["CMD"]
    assert str(GRPC_PORTS[service]) in final["EXPOSE"].split()
    assert f'"service.probe", "127.0.0.1:{GRPC_PORTS[service]}"' in final["HEALTHCHECK"]


@pytest.mark.parametrize("name", GRPC_PORTS)
def test_compose_gives_flags_that_the_service_has(name: str) -> None:
    service = compose()["services"][name]
    given = dict(word.split("=", 1) for word in service["command"])
    assert set(given) <= flags_of(name.removesuffix("_cpu"))
    assert given["--listen"] == f"0.0.0.0:{GRPC_PORTS[name]}"
    assert service["healthcheck"]["test"] == ["CMD", "python", "-m", "service.probe", f"127.0.0.1:{GRPC_PORTS[name]}"]
    assert service["restart"] == "unless-stopped"
    assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_a_gpu_is_the_default_and_the_cpu_profile_needs_none() -> None:
    assert defaults()["COMPOSE_PROFILES"] == "gpu"
    assert services_of("gpu") == {"kv_manager", "model_worker", "gateway"}
    assert services_of("cpu") == {"kv_manager", "model_worker_cpu", "gateway"}
    services = compose()["services"]
    (device,) = services["model_worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert [name for name in services if "deploy" in services[name]] == ["model_worker"]
    assert "--device=cuda" in services["model_worker"]["command"]
    assert "--device=cpu" in services["model_worker_cpu"]["command"]


@pytest.mark.parametrize("profile", ["gpu", "cpu"])
def test_services_wait_for_the_health_of_those_they_call(profile: str) -> None:
    services = compose()["services"]
    names = services_of(profile)
    for name in names:
        for needed, how in services[name].get("depends_on", {}).items():
            assert how["condition"] == "service_healthy"
            assert needed in names or how.get("required") is False
    (worker,) = names - {"kv_manager", "gateway"}
    assert "kv_manager" in services[worker]["depends_on"]
    assert worker in services["gateway"]["depends_on"]
    # The gateway's one address of a worker names whichever runs.
    aliases = services[worker].get("networks", {}).get("default", {}).get("aliases", [worker])
    assert "--workers=model_worker:50051" in services["gateway"]["command"]
    assert aliases == ["model_worker"]


def test_variables_have_defaults_and_defaults_are_used() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    used = dict(re.findall(r"\$\{(\w+)(:-[^}]*)?\}", text))
    assert all(default for default in used.values())
    assert set(defaults()) - {"COMPOSE_PROFILES"} <= set(used)


def test_weights_are_never_fetched_and_models_are_read_only() -> None:
    for name in ("model_worker", "model_worker_cpu"):
        service = compose()["services"][name]
        assert service["environment"]["HF_HUB_OFFLINE"] == "1"
        assert all(volume.endswith(":ro") for volume in service["volumes"])
        assert service["shm_size"] == "2gb"


def test_docker_itself_accepts_the_compose_file() -> None:
    try:
        has_compose = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        has_compose = False
    if not has_compose:
        pytest.skip("docker compose is not installed; the tests above read the file themselves")
    for profile in ("gpu", "cpu"):
        command = shlex.split(f"docker compose --profile {profile} config --services")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) == services_of(profile)
