"""Dockerfiles and docker-compose.yml, as far as they can be checked without a Docker engine.

With one: tests/compose, by `make compose-test`.
"""

import fnmatch
import re
import runpy
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from gateway import settings as gateway_settings

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ["kv_manager", "model_worker", "gateway"]
GRPC_PORTS = {"gateway": 50050, "model_worker": 50051, "model_worker_cpu": 50051, "kv_manager": 50052}
COMPOSE_FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("deploy/compose.*.yml"))
SLOW_LOAD_SECONDS = 180
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
    return dict(rest.replace('"', "").split("=", 1) for word, rest in instructions(service) if word == "ARG")


def let_in() -> list[str]:
    return [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]


@cache
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def own_services() -> dict[str, Any]:
    return {name: service for name, service in compose()["services"].items() if "build" in service}


def defaults() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def services_of(profile: str) -> set[str]:
    return {name for name, service in compose()["services"].items() if profile in service.get("profiles", [profile])}


@cache
def flags_of(module: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(re.findall(r"--[a-z][a-z-]+", done.stdout))


@cache
def extras() -> dict[str, list[str]]:
    known: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return known


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_copied_exists_and_is_let_in(service: str) -> None:
    copies = [rest.split() for word, rest in instructions(service) if word == "COPY" and "--from" not in rest]
    sources = {source for words in copies for source in words[:-1]}
    assert {"pyproject.toml", "deploy/requirements.py", "constraints/${CONSTRAINTS}.txt", "."} == sources
    for source in (source.split("/$")[0] for source in sources - {"."}):
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in let_in()), f"{source} is ignored"


def test_all_that_the_wheel_is_built_from_is_let_in_and_nothing_else() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = {package.split("/")[0] for package in build["targets"]["wheel"]["packages"]}
    others = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "constraints", "deploy/requirements.py"}
    assert set(let_in()) == packages | others


@pytest.mark.parametrize("service", SERVICES)
def test_extras_and_constraints_exist(service: str) -> None:
    variants = [build_arguments(service)]
    if service == "model_worker":
        in_compose = [entry["build"].get("args", {}) for entry in own_services().values()]
        variants += [{**variants[0], **given} for given in in_compose if "EXTRAS" in given]
        assert {variant["EXTRAS"] for variant in variants} == {"worker,cuda,otel", "worker,otel"}
        # Triton calls a C compiler when a GPU first runs a kernel; nothing does without a GPU.
        assert {variant["RUNTIME_PACKAGES"] for variant in variants} == {"gcc libc6-dev", ""}
    for variant in variants:
        assert set(variant["EXTRAS"].split(",")) <= set(extras())
        assert (ROOT / "constraints" / f"{variant['CONSTRAINTS']}.txt").is_file()


@pytest.mark.parametrize(("module", "extra"), [("kv_manager", "kv-manager"), ("gateway", "gateway,cli,otel")])
def test_an_image_installs_what_its_extra_asks_for(module: str, extra: str) -> None:
    requirements = runpy.run_path(str(ROOT / "deploy" / "requirements.py"))["requirements"]
    asked = requirements(ROOT / "pyproject.toml", extra.split(","))
    assert build_arguments(module)["EXTRAS"] == extra
    names = {Requirement(line).name for line in asked}
    assert len(names) == len(asked), "asked for twice"
    assert {"grpcio", "protobuf", "grpcio-health-checking", "prometheus-client"} <= names
    assert ({"typer", "rich"} <= names) == (module == "gateway")
    assert ("starlette" in names) == ("opentelemetry-sdk" in names) == (module == "gateway")
    assert not names & {"octavo", "torch", "transformers"}


@pytest.mark.parametrize("service", SERVICES)
def test_the_image_is_slim_and_runs_as_nobody_in_particular(service: str) -> None:
    final = final_stage(service)
    assert final[0] == ("FROM", "${BASE}")
    # A release of Python on a release of Debian: what is built next year is what was built today, security fixes aside.
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", build_arguments(service)["BASE"])
    assert defaults()["OCTAVO_BASE_IMAGE"] == build_arguments(service)["BASE"]
    commands = [rest for word, rest in final if word == "RUN"]
    # Only the packages that an argument names, which are none without a GPU.
    guarded = [command for command in commands if 'if [ -n "${RUNTIME_PACKAGES}" ]' in command]
    assert len(guarded) == (service == "model_worker")
    rest = [command for command in commands if command not in guarded]
    assert not [command for command in rest if re.search(r"\b(pip|apt|apt-get|gcc|make)\b", command)]
    copied = ["--from=build /opt/octavo /opt/octavo", "--from=build /opt/app /opt/app"]
    assert [rest for word, rest in final if word == "COPY"] == copied
    words = [word for word, _ in final]
    assert dict(final)["USER"] == "octavo"
    assert words.index("USER") < words.index("ENTRYPOINT")


@pytest.mark.parametrize("service", SERVICES)
def test_a_build_fetches_no_frontend(service: str) -> None:
    text = (ROOT / service / "Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax\s*=", text, flags=re.MULTILINE)


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
    assert (ROOT / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", GRPC_PORTS)
def test_a_service_holds_no_more_than_it_needs(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert defaults()["OCTAVO_RESTART"] in service["restart"]
    # A loop of restarts ends.
    assert re.fullmatch(r"on-failure:\d+", defaults()["OCTAVO_RESTART"])


def test_ports_stay_on_this_machine_unless_somebody_says_otherwise() -> None:
    for name, service in compose()["services"].items():
        for port in service.get("ports", []):
            assert re.fullmatch(r"\$\{OCTAVO_\w+:-127\.0\.0\.1:\d+\}:\d+", port), name
    # A port of the machine belongs to one container: those that may have replicas publish none.
    assert not any("ports" in compose()["services"][name] for name in ("model_worker", "model_worker_cpu"))


def test_a_gpu_is_the_default_and_the_cpu_profile_needs_none() -> None:
    assert defaults()["COMPOSE_PROFILES"] == "gpu"
    assert services_of("gpu") == {"kv_manager", "model_worker", "gateway"}
    assert services_of("cpu") == {"kv_manager", "model_worker_cpu", "gateway"}
    assert services_of("monitoring") == {"kv_manager", "gateway", "prometheus", "grafana"}
    services = compose()["services"]
    (device,) = services["model_worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "${OCTAVO_GPUS:-1}", "capabilities": ["gpu"]}
    assert [name for name in services if "deploy" in services[name]] == ["model_worker"]
    assert services["model_worker"]["environment"]["OCTAVO_WORKER_DEVICE"] == "cuda"
    assert services["model_worker"]["shm_size"] == "2gb"
    assert services["model_worker_cpu"]["environment"]["OCTAVO_WORKER_DEVICE"] == "cpu"


def test_a_replica_has_a_pool_of_its_own_and_the_gateway_finds_it() -> None:
    services = compose()["services"]
    gateway = dict(word.split("=", 1) for word in services["gateway"]["command"])
    assert gateway["--workers"] == "${OCTAVO_WORKERS:-dns:///model_worker:50051}"
    assert gateway["--managers"] == "kv_manager:50052"
    for name in ("model_worker", "model_worker_cpu"):
        assert "--pool={hostname}" in services[name]["command"]
        # The one name that the gateway looks up is that of whichever runs.
        aliases = services[name].get("networks", {}).get("default", {}).get("aliases", [name])
        assert aliases == ["model_worker"]


@pytest.mark.parametrize("profile", ["gpu", "cpu"])
def test_who_waits_for_whom(profile: str) -> None:
    services = compose()["services"]
    names = services_of(profile)
    (worker,) = names - {"kv_manager", "gateway"}
    manager = {"kv_manager": {"condition": "service_healthy"}}
    assert services[worker]["depends_on"] == manager
    # A gateway that waited for a model to load could not say that it is loading.
    workers = {name: {"condition": "service_started", "required": False} for name in services if "worker" in name}
    assert services["gateway"]["depends_on"] == manager | workers
    for name in (worker, "gateway"):
        assert int(services[name]["healthcheck"]["start_period"].removesuffix("s")) > SLOW_LOAD_SECONDS


def test_every_variable_is_documented_with_its_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    used = re.findall(r"\$\{(\w+)(?:(:-|:\?|:\+)([^}]*))?\}", text)
    assert all(operator for _, operator, _ in used), "a variable without a default"
    given = {name: default for name, operator, default in used if operator == ":-"}
    told = defaults()
    for name, default in given.items():
        if default not in ("/dev/null", ""):
            assert default in (told[name], "model"), name
    elsewhere = {"COMPOSE_PROFILES"} | {
        name for file in COMPOSE_FILES for name in re.findall(r"\$\{(\w+)", (ROOT / file).read_text())
    }
    assert set(told) == {name for name, _, _ in used} | elsewhere


def test_a_forgotten_env_file_is_said_so() -> None:
    source = compose()["services"]["model_worker"]["volumes"][0]["source"]
    assert ":?" in source
    assert ".env.example" in source
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {".env", "octavo.env", "/tenants/", "/tls/"} <= set(ignored)


def test_weights_are_never_fetched_and_models_are_read_only() -> None:
    for name in ("model_worker", "model_worker_cpu"):
        assert compose()["services"][name]["environment"]["HF_HUB_OFFLINE"] == "1"
        assert "/models/model" in binds(name)


def binds(name: str) -> dict[str, str]:
    """What a service sees of this machine: target -> source. All of it read-only."""
    mounts = [volume for volume in compose()["services"][name]["volumes"] if isinstance(volume, dict)]
    assert all(mount["read_only"] for mount in mounts)
    # Docker would make a folder that is missing, and an empty one at that.
    assert all(mount["bind"] == {"create_host_path": False} for mount in mounts)
    return {mount["target"]: mount["source"] for mount in mounts}


def test_the_folder_of_keys_is_mounted_so_that_another_file_moved_into_it_is_seen() -> None:
    assert "secrets" not in compose()
    for name, variable in {
        "gateway": "OCTAVO_GATEWAY_TENANTS",
        "model_worker": "OCTAVO_WORKER_TENANTS",
        "model_worker_cpu": "OCTAVO_WORKER_TENANTS",
    }.items():
        assert binds(name)["/etc/octavo/tenants"] == "${OCTAVO_TENANTS:-/dev/null}"
        environment = compose()["services"][name]["environment"]
        assert environment[variable] == "${OCTAVO_TENANTS:+/etc/octavo/tenants/tenants.toml}"


def test_certificates_are_for_the_names_that_services_and_clients_call(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    make = [ROOT / "deploy" / "certificates.sh", folder, "octavo.example", "10.0.0.7"]
    subprocess.run(make, check=True)

    def names(service: str) -> set[str]:
        shown = ["openssl", "x509", "-in", folder / f"{service}.pem", "-noout", "-ext", "subjectAltName"]
        printed = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"(?:DNS|IP Address):([\w.]+)", printed))

    here = {"localhost", "127.0.0.1"}
    assert names("gateway") == {"gateway", "octavo.example", "10.0.0.7"} | here
    assert names("kv_manager") == {"kv_manager"} | here
    assert names("model_worker") == {"model_worker"}
    # Others on this machine read no key: what is open to read lies in a folder that is not.
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "ca.key").stat().st_mode & 0o077 == 0
    # Made again, they are others by the same CA.
    before = {file.name: file.read_bytes() for file in folder.glob("*.pem")}
    subprocess.run(make, check=True)
    changed = {name for name, content in before.items() if (folder / name).read_bytes() != content}
    assert changed == set(before) - {"ca.pem"}
    check = ["openssl", "verify", "-CAfile", folder / "ca.pem", *(folder / name for name in before)]
    subprocess.run(check, capture_output=True, check=True)


INSPECTED = "OCTAVO_GATEWAY_INSPECT_MANAGERS"


@pytest.mark.parametrize("tenants", ["", "/etc/octavo/tenants/tenants.toml"])
def test_the_inspector_shows_this_manager_and_never_text(
    tenants: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = compose()["services"]["gateway"]["environment"]
    assert environment[INSPECTED] == "${OCTAVO_INSPECT_MANAGERS:-kv_manager:50052}"
    assert environment["OCTAVO_GATEWAY_INSPECT"] == "${OCTAVO_INSPECT:-true}"
    monkeypatch.chdir(tmp_path)  # where no octavo.toml is
    monkeypatch.setenv("OCTAVO_GATEWAY_INSPECT", defaults()["OCTAVO_INSPECT"])
    monkeypatch.setenv(INSPECTED, defaults()["OCTAVO_INSPECT_MANAGERS"])
    monkeypatch.setenv("OCTAVO_GATEWAY_TENANTS", tenants)
    settings = gateway_settings.load([])
    assert settings.inspect
    assert settings.inspect_managers == ("kv_manager:50052",)
    assert settings.tenants == (Path(tenants) if tenants else None)
    assert not settings.inspect_tokens
    # Nor does the manager tell tokens, whatever a gateway allows.
    manager = [word for word in compose()["services"]["kv_manager"]["command"] if "token" in word]
    assert manager == []


def test_prometheus_looks_where_the_services_tell() -> None:
    document = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (looked_up,) = ({job["job_name"]: job["dns_sd_configs"] for job in document["scrape_configs"]},)
    targets = {(entry["names"][0], entry["port"]) for entries in looked_up.values() for entry in entries}
    told = set()
    for name, service in own_services().items():
        given = dict(word.split("=", 1) for word in service["command"])
        told.add((name.removesuffix("_cpu"), int(given["--metrics"].removeprefix("0.0.0.0:"))))
    assert targets == told
    mounted = compose()["services"]["prometheus"]["volumes"][0].split(":")[0]
    assert all((ROOT / mounted / name).is_file() for name in ["prometheus.yml", *document["rule_files"]])


def complaints(text: str, folder: Path) -> str:
    """What the compose schema has against a file, empty for nothing. How files merge, by tags, is not its matter."""
    file = folder / "docker-compose.yml"
    file.write_text(re.sub(r"!(?:override|reset)\b", "", text))
    check = str(Path(sys.executable).with_name("check-jsonschema"))
    done = subprocess.run(
        [check, "--builtin-schema", "vendor.compose-spec", file], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("file", ["docker-compose.yml", *COMPOSE_FILES, "tests/compose/docker-compose.yml"])
def test_compose_files_keep_to_the_compose_schema(file: str, tmp_path: Path) -> None:
    assert complaints((ROOT / file).read_text(), tmp_path) == ""


def test_the_schema_refuses_what_is_no_compose_file(tmp_path: Path) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert "readonly" in complaints(text.replace("read_only: true\n  tmpfs", "readonly: true\n  tmpfs"), tmp_path)
