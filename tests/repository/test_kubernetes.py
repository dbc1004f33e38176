"""deploy/kubernetes: built by kustomize, valid by Kubernetes' own schemas, and in step with what the services take.

The base is plain manifests and is checked as it stands. Overlays are built by kubectl or kustomize, where there is one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml

import service.settings
from gateway import settings as gateway_settings
from gateway.http import server as http_server
from kv_manager import settings as kv_settings
from model_worker import settings as worker_settings
from service.serving import NOTICE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
# From the first one whose preStop can sleep, to the newest that is known.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
# What a component runs, the prefix of its variables, and its gRPC port.
SERVICES = {
    "kv-manager": ("kv_manager", "OCTAVO_KV_", 50052),
    "model-worker": ("model_worker", "OCTAVO_WORKER_", 50051),
    "gateway": ("gateway", "OCTAVO_GATEWAY_", 50050),
}
NAME = "app.kubernetes.io/name"
# How each reads flags and variables.
SETTINGS: dict[str, Callable[[list[str]], Any]] = {
    "kv-manager": lambda arguments: service.settings.load(
        kv_settings.Settings, program="kv_manager", table="kv_manager", prefix=kv_settings.PREFIX, arguments=arguments
    ),
    "model-worker": worker_settings.load,
    "gateway": gateway_settings.load,
}
# Beyond the grace: what is left until a process has ended, on a node that is busy.
MARGIN_SECONDS = 5
# Read, not imported: torch would come with it.
(LAST_WORD_SECONDS,) = re.findall(
    r"^LAST_WORD_SECONDS = ([\d.]+)$", (ROOT / "model_worker" / "app.py").read_text(), flags=re.MULTILINE
)
# What each service does after the grace that it was given.
AFTER_GRACE = {
    "kv-manager": NOTICE_SECONDS,
    "model-worker": NOTICE_SECONDS + float(LAST_WORD_SECONDS),
    "gateway": NOTICE_SECONDS + 2 * http_server.CUT_OFF_SECONDS,
}

Manifest = dict[str, Any]
pytestmark = pytest.mark.unit


def base_files() -> list[Path]:
    listed = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["resources"]
    return [KUBERNETES / "base" / name for name in listed] + [KUBERNETES / "filler.yaml"]


def builder() -> list[str] | None:
    """The command that builds a folder."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


@cache
def built(overlay: str) -> tuple[Manifest, ...]:
    command = builder()
    if command is None:
        pytest.skip("neither kustomize nor kubectl is installed; the base's manifests are checked as they stand")
    done = subprocess.run(
        [*command, str(KUBERNETES / "overlays" / overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()
    return tuple(yaml.safe_load_all(done.stdout))


class Pod(NamedTuple):
    """The pods of a component as an overlay makes them."""

    owner: Manifest
    spec: Manifest
    container: Manifest
    config: Mapping[str, str]

    @property
    def flags(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.container["args"])

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}


def of_kind(manifests: tuple[Manifest, ...], *kinds: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] in kinds}


def pods(overlay: str) -> dict[str, Pod]:
    manifests = built(overlay)
    maps = of_kind(manifests, "ConfigMap")
    found = {}
    for name, owner in of_kind(manifests, "Deployment", "StatefulSet").items():
        spec = owner["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        (source,) = container["envFrom"]
        found[name] = Pod(owner, spec, container, maps[source["configMapRef"]["name"]]["data"])
    assert set(found) == set(SERVICES)
    return found


each_pod = pytest.mark.parametrize(("overlay", "name"), [(overlay, name) for overlay in OVERLAYS for name in SERVICES])
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@cache
def help_of(module: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def problems(manifest: Manifest, version: str) -> str:
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{manifest['kind']} {manifest['metadata']['name']}: {list(error.path)}: {error.message}"
    return ""


@pytest.mark.parametrize("file", base_files(), ids=lambda path: path.name)
def test_the_base_is_valid(file: Path) -> None:
    manifests = list(yaml.safe_load_all(file.read_text()))
    assert manifests
    for manifest in manifests:
        assert problems(manifest, VERSIONS[-1]) == ""


@pytest.mark.parametrize("version", VERSIONS)
@each_overlay
def test_overlays_are_valid(overlay: str, version: str) -> None:
    manifests = built(overlay)
    assert len(manifests) > 15
    assert [found for manifest in manifests if (found := problems(manifest, version))] == []


def test_the_schemas_find_a_misspelled_field() -> None:
    (namespace,) = yaml.safe_load_all((KUBERNETES / "base" / "namespace.yaml").read_text())
    assert problems(namespace, VERSIONS[0]) == ""
    namespace["metadata"]["lables"] = namespace["metadata"].pop("labels")
    assert "lables" in problems(namespace, VERSIONS[0])


@each_pod
def test_every_flag_and_variable_is_one_of_the_service(overlay: str, name: str) -> None:
    module, prefix, _ = SERVICES[name]
    text = help_of(module)
    pod = pods(overlay)[name]
    for flag in pod.flags:
        assert re.search(rf"^\s+{flag}\b", text, flags=re.MULTILINE), flag
    assert pod.config
    for variable in pod.config:
        assert variable.startswith(prefix)
        assert re.search(rf"\${variable}\b", text), variable
        # A flag would win over it without a word.
        assert f"--{variable.removeprefix(prefix).lower().replace('_', '-')}" not in pod.flags


@each_pod
def test_the_services_take_their_settings(
    overlay: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pod = pods(overlay)[name]
    monkeypatch.chdir(tmp_path)  # where no octavo.toml is
    for variable, value in pod.config.items():
        monkeypatch.setenv(variable, value)
    arguments = [word.replace("$(POD_NAME)", f"{name}-0") for word in pod.container["args"]]
    settings = SETTINGS[name](arguments)
    assert settings.grace_seconds == float(pod.flags["--grace-seconds"])
    secured = any(variable.endswith("_TLS_CERTIFICATE") for variable in pod.config)
    if name == "model-worker":
        assert settings.pool == "model-worker-0"
        assert (settings.server_tls is not None, settings.manager_tls is not None) == (secured, secured)
    if name == "gateway":
        assert [settings.worker_tls is not None, settings.manager_tls is not None] == [secured] * 2


def test_the_base_names_flags_of_the_services_too() -> None:
    """Without a builder the overlays are not seen."""
    for name, (module, _, _) in SERVICES.items():
        manifests = tuple(yaml.safe_load_all((KUBERNETES / "base" / f"{name}.yaml").read_text()))
        (owner,) = of_kind(manifests, "Deployment", "StatefulSet").values()
        (container,) = owner["spec"]["template"]["spec"]["containers"]
        words = [word.split("=", 1)[0] for word in container["args"]]
        assert words
        assert [word for word in words if not re.search(rf"^\s+{word}\b", help_of(module), flags=re.MULTILINE)] == []


@each_pod
def test_pods_are_confined(overlay: str, name: str) -> None:
    pod = pods(overlay)[name]
    assert pod.spec["securityContext"]["runAsNonRoot"] is True
    assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod.container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod.spec["automountServiceAccountToken"] is False
    # Kubernetes would put variables of the services' names beside the settings.
    assert pod.spec["enableServiceLinks"] is False
    # Whom the images run as.
    dockerfile = (ROOT / SERVICES[name][0] / "Dockerfile").read_text()
    (uid,) = re.findall(r"useradd .*--uid (\d+)", dockerfile)
    assert pod.spec["securityContext"]["runAsUser"] == int(uid)
    # A node's CPU that is there may be taken: a throttled step holds up all streams.
    assert "cpu" not in pod.container["resources"].get("limits", {})
    assert {"cpu", "memory"} <= set(pod.container["resources"]["requests"])


@each_pod
def test_the_kill_comes_after_the_grace(overlay: str, name: str) -> None:
    pod = pods(overlay)[name]
    sleep = pod.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    needed = sleep + float(pod.flags["--grace-seconds"]) + AFTER_GRACE[name] + MARGIN_SECONDS
    assert pod.spec["terminationGracePeriodSeconds"] >= needed


def handlers(pod: Pod) -> Iterator[tuple[str, Manifest]]:
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if kind in pod.container:
            yield kind, pod.container[kind]


@each_pod
def test_probes_ask_where_the_service_listens(overlay: str, name: str) -> None:
    port = SERVICES[name][2]
    pod = pods(overlay)[name]
    assert pod.ports["grpc"] == port
    for flag, at in (("--listen", "grpc"), ("--http-listen", "http"), ("--metrics", "metrics")):
        if flag in pod.flags:
            assert pod.flags[flag] == f"0.0.0.0:{pod.ports[at]}"
    assert pod.owner["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(pod.ports["metrics"])
    secured = any(variable.endswith("_TLS_CERTIFICATE") for variable in pod.config)
    for kind, probe in handlers(pod):
        match [key for key in probe if key in ("grpc", "httpGet", "exec")]:
            case ["grpc"]:
                assert (probe["grpc"]["port"], secured, kind) == (port, False, "readinessProbe")
            case ["exec"]:
                assert probe["exec"]["command"] == ["python", "-m", "service.probe", f"127.0.0.1:{port}"]
            case ["httpGet"]:
                assert probe["httpGet"]["port"] in pod.ports
                # The gateway's HTTP is by TLS where its gRPC is; pages of metrics never are.
                by_tls = secured and probe["httpGet"]["port"] == "http"
                assert probe["httpGet"].get("scheme", "HTTP") == ("HTTPS" if by_tls else "HTTP")
                assert kind == "readinessProbe" or probe["httpGet"]["path"] in ("/livez", "/metrics")
            case found:
                raise AssertionError(found)


@each_overlay
def test_a_manager_is_not_killed_for_checking_its_largest_pool(overlay: str) -> None:
    """docs/operations.md: 5 s per million blocks, and none has more than --max-pool-blocks."""
    seconds = 5 * kv_settings.Settings().max_pool_blocks / 1e6
    probe = pods(overlay)["kv-manager"].container["livenessProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] > seconds


@each_overlay
def test_names_lead_somewhere(overlay: str) -> None:
    manifests, found = built(overlay), pods(overlay)
    services = of_kind(manifests, "Service")
    claims = of_kind(manifests, "PersistentVolumeClaim")
    for name, pod in found.items():
        labels = pod.owner["spec"]["template"]["metadata"]["labels"]
        assert pod.owner["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert services[name]["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in services[name]["spec"]["ports"]} <= set(pod.ports)
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
        mounts = {mount["name"]: mount for mount in pod.container.get("volumeMounts", [])}
        assert set(volumes) == set(mounts)
        assert {
            one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "persistentVolumeClaim" in one
        } <= set(claims)
        # A file of the settings lies in a folder that is mounted.
        folders = [mount["mountPath"] for mount in mounts.values()]
        files = [value for variable, value in pod.config.items() if value.startswith("/")]
        assert [file for file in files if not any(file.startswith(f"{folder}/") for folder in folders)] == []
    for budget in of_kind(manifests, "PodDisruptionBudget").values():
        assert budget["spec"]["selector"]["matchLabels"][NAME] in found
    secrets = {
        volume["secret"]["secretName"]
        for pod in found.values()
        for volume in pod.spec.get("volumes", [])
        if "secret" in volume
    }
    readme = (KUBERNETES / "README.md").read_text()
    assert [secret for secret in secrets if f"`{secret}`" not in readme] == []


@each_overlay
def test_the_services_find_each_other(overlay: str) -> None:
    manifests, found = built(overlay), pods(overlay)
    services = of_kind(manifests, "Service")
    gateway, worker = found["gateway"].config, found["model-worker"]
    assert worker.flags["--manager"] == gateway["OCTAVO_GATEWAY_MANAGERS"] == "kv-manager:50052"
    assert gateway["OCTAVO_GATEWAY_INSPECT_MANAGERS"] == "kv-manager:50052"
    # The inspector's data is for operators, where anybody has a key; text is for nobody.
    assert "OCTAVO_GATEWAY_INSPECT_TOKENS" not in gateway
    # A pool for each worker.
    assert worker.flags["--pool"] == "$(POD_NAME)"
    assert services["model-worker"]["spec"]["clusterIP"] == "None"
    assert worker.owner["spec"]["serviceName"] == "model-worker"
    assert gateway["OCTAVO_GATEWAY_WORKERS"] == "dns:///model-worker:50051"


def test_only_those_who_need_a_port_reach_it() -> None:
    policies = of_kind(built("cpu"), "NetworkPolicy")
    nobody = policies["nobody"]["spec"]
    assert (nobody["podSelector"], set(nobody["policyTypes"])) == ({}, {"Ingress", "Egress"})
    assert "ingress" not in nobody
    assert "egress" not in nobody

    found = pods("cpu")

    def peers(name: str, direction: str, port: int) -> set[str]:
        """Whom a policy lets through a port; "monitoring" and "kube-system" are namespaces."""
        spec, side = policies[name]["spec"], {"ingress": "from", "egress": "to"}[direction]
        return {
            label
            for rule in spec.get(direction, [])
            if port in {one["port"] for one in rule["ports"]}
            for peer in rule.get(side, [{"podSelector": {"matchLabels": {NAME: "anybody"}}}])
            for label in next(iter(peer.values()))["matchLabels"].values()
        }

    grpc = {name: pod.ports["grpc"] for name, pod in found.items()}
    assert peers("kv-manager", "ingress", grpc["kv-manager"]) == {"gateway", "model-worker"}
    assert peers("model-worker", "ingress", grpc["model-worker"]) == {"gateway"}
    for port in ("grpc", "http"):
        assert peers("gateway", "ingress", found["gateway"].ports[port]) == {"anybody"}
    for name, pod in found.items():
        assert peers(name, "ingress", pod.ports["metrics"]) == {"monitoring"}
    # And who is let in by one side is let out by the other.
    assert peers("gateway", "egress", grpc["model-worker"]) == {"model-worker"}
    assert peers("gateway", "egress", grpc["kv-manager"]) == {"kv-manager"}
    assert peers("model-worker", "egress", grpc["kv-manager"]) == {"kv-manager"}
    assert peers("names", "egress", 53) == {"kube-system"}


def test_gpus_and_threads() -> None:
    gpu, cpu = pods("gpu")["model-worker"], pods("cpu")["model-worker"]
    assert gpu.container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert gpu.config["OCTAVO_WORKER_DEVICE"] == "cuda"
    assert cpu.config["OCTAVO_WORKER_DEVICE"] == "cpu"
    assert not [key for key in cpu.container["resources"].get("limits", {}) if "gpu" in key]
    assert cpu.container["image"].endswith(":cpu")
    # Torch would take every core of the node.
    for pod in (gpu, cpu):
        assert pod.config["OCTAVO_WORKER_THREADS"] == pod.container["resources"]["requests"]["cpu"]


@pytest.mark.parametrize("component", ["tenants", "tls"])
def test_components_go_with_any_overlay(component: str, tmp_path: Path) -> None:
    command = builder()
    if command is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    # Kustomize takes no absolute path.
    above = Path(os.path.relpath(KUBERNETES, tmp_path))
    own = {"resources": [str(above / "overlays" / "cpu")], "components": [str(above / "components" / component)]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifests = tuple(yaml.safe_load_all(done.stdout))
    assert [found for manifest in manifests if (found := problems(manifest, VERSIONS[-1]))] == []
    config = of_kind(manifests, "ConfigMap")
    (gateway,) = [one["data"] for name, one in config.items() if name.startswith("gateway-")]
    assert [variable for variable in gateway if variable.startswith(f"OCTAVO_GATEWAY_{component.upper()}")]


def test_images_are_those_that_compose_builds() -> None:
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "docker-compose.yml").read_text())
    services = yaml.safe_load(text)["services"].values()
    made = {service["image"].removesuffix(":latest") for service in services if "build" in service}
    used = {pod.container["image"] for overlay in ("cpu", "gpu") for pod in pods(overlay).values()}
    assert used == made


def test_a_changed_setting_restarts_its_pods_and_a_changed_key_does_not() -> None:
    for pod in pods("production").values():
        (source,) = pod.container["envFrom"]
        assert re.fullmatch(r"[a-z-]+-[a-z0-9]{10}", source["configMapRef"]["name"])
    mounts = {mount["name"]: mount for mount in pods("production")["gateway"].container["volumeMounts"]}
    # A mounted folder follows its secret, a subPath never does.
    assert "subPath" not in mounts["tenants"]


def test_the_readme_names_what_is_there() -> None:
    text = (KUBERNETES / "README.md").read_text()
    for name in re.findall(r"`((?:base|overlays|components)/[\w./-]*)`", text):
        assert (KUBERNETES / name).exists(), name
    for name in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (KUBERNETES / name).exists(), name
    assert json.dumps(sorted(OVERLAYS)) == json.dumps(sorted(set(re.findall(r"overlays/(\w+)", text))))
