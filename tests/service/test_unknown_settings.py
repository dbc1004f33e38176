"""Variables that begin as a service's settings do and set nothing: warned of by name, once, and never refused."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from shown_serve import LISTENERS

from service.unknown_settings import unknown_variables

ROOT = Path(__file__).resolve().parents[2]
KNOWN = ["OCTAVO_GATEWAY_LISTEN", "OCTAVO_GATEWAY_WORKERS"]
VALUE = "hunter2-hunter2-hunter2"

# A Service named octavo-gateway whose two ports have names, and another with a longer one.
INJECTED = [
    "OCTAVO_GATEWAY_SERVICE_HOST",
    "OCTAVO_GATEWAY_SERVICE_PORT",
    "OCTAVO_GATEWAY_SERVICE_PORT_GRPC",
    "OCTAVO_GATEWAY_SERVICE_PORT_HTTP_API",
    "OCTAVO_GATEWAY_PORT",
    "OCTAVO_GATEWAY_PORT_50050_TCP",
    "OCTAVO_GATEWAY_PORT_50050_TCP_PROTO",
    "OCTAVO_GATEWAY_PORT_50050_TCP_PORT",
    "OCTAVO_GATEWAY_PORT_50050_TCP_ADDR",
    "OCTAVO_GATEWAY_EDGE_SERVICE_HOST",
    "OCTAVO_GATEWAY_EDGE_PORT_8000_TCP_ADDR",
]


@pytest.mark.unit
def test_what_is_unknown_is_what_is_neither_a_setting_nor_injected_nor_another_services() -> None:
    foreign = ["PATH", "OCTAVO_CONFIG", "OCTAVO_GATEWAYS", "OCTAVO_WORKER_LISTEN"]
    unknown = ["OCTAVO_GATEWAY_LISTN", "OCTAVO_GATEWAY_", "OCTAVO_GATEWAY_PORTS", "OCTAVO_GATEWAY_SERVICE_HOSTS"]
    found = unknown_variables([*KNOWN, *INJECTED, *foreign, *unknown], "OCTAVO_GATEWAY_", KNOWN)
    assert found == sorted(unknown)


@pytest.mark.unit
def test_a_name_in_another_case_is_unknown_to_who_reads_upper_case_alone() -> None:
    assert unknown_variables(["octavo_gateway_listen"], "OCTAVO_GATEWAY_", KNOWN) == ["octavo_gateway_listen"]


@pytest.mark.unit
def test_where_the_commands_find_a_worker_is_no_misspelled_setting() -> None:
    assert unknown_variables(["OCTAVO_WORKER_ADDRESS"], "OCTAVO_WORKER_", ["OCTAVO_WORKER_LISTEN"]) == []


def ended(arguments: list[str], environ: Mapping[str, str], folder: Path) -> list[str]:
    """The lines that a process logs which cannot start, and says so after its settings."""
    environment = {**os.environ, **environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "protos")))}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert VALUE not in done.stderr + done.stdout
    return done.stderr.splitlines()


@pytest.mark.e2e
def test_octavo_serve_shows_what_its_services_do_not_know(tmp_path: Path) -> None:
    model = tmp_path / "no-model"
    model.mkdir()
    unknown = {"OCTAVO_KV_LEASE_SECOND": VALUE, "OCTAVO_WORKER_BLOCK_SIZ": VALUE}
    lines = ended(["cli.main", "serve", f"--model={model}", *(f"--{port}=0" for port in LISTENERS)], unknown, tmp_path)
    for service, name in zip(("kv_manager", "model_worker"), unknown, strict=True):
        assert any(line.startswith(service) and f"WARNING {name} is no setting" in line for line in lines), lines


def warnings(lines: list[str]) -> list[str]:
    entries = [json.loads(line) for line in lines]
    return [entry["message"] for entry in entries if entry["level"] == "WARNING"]


CASES = {
    "kv_manager": (
        ["kv_manager", "--record=missing/record"],
        {"OCTAVO_KV_LEASE_SECOND": VALUE, "octavo_kv_listen": VALUE},
        [
            "OCTAVO_KV_LEASE_SECOND is no setting and does nothing: is OCTAVO_KV_LEASE_SECONDS meant?",
            "octavo_kv_listen is no setting and does nothing: is OCTAVO_KV_LISTEN meant?",
        ],
    ),
    "gateway": (
        ["gateway", "--tokenizer=missing"],
        {"OCTAVO_GATEWAY_REGISTRATION_TOKN": VALUE, "octavo_gateway_log_level": "warning", "OCTAVO_GATEWAY_QQ": VALUE},
        [
            "OCTAVO_GATEWAY_QQ is no setting and does nothing",
            "OCTAVO_GATEWAY_REGISTRATION_TOKN is no setting and does nothing: "
            "is OCTAVO_GATEWAY_REGISTRATION_TOKEN meant?",
        ],
    ),
    "model_worker": (
        ["model_worker", "--model=missing"],
        {"OCTAVO_WORKER_BLOCK_SIZ": VALUE, "octavo_worker_block_size": "32"},
        ["OCTAVO_WORKER_BLOCK_SIZ is no setting and does nothing: is OCTAVO_WORKER_BLOCK_SIZE meant?"],
    ),
    "both in one process": (
        ["cli.embedded_worker", "--listen=127.0.0.1:0", "--", "--model=missing"],
        {"OCTAVO_WORKER_BLOCK_SIZ": VALUE, "OCTAVO_KV_LEASE_SECOND": VALUE},
        [
            "OCTAVO_KV_LEASE_SECOND is no setting and does nothing: is OCTAVO_KV_LEASE_SECONDS meant?",
            "OCTAVO_WORKER_BLOCK_SIZ is no setting and does nothing: is OCTAVO_WORKER_BLOCK_SIZE meant?",
        ],
    ),
}


@pytest.mark.e2e
@pytest.mark.parametrize("case", CASES)
def test_each_service_names_what_it_does_not_know_once_and_starts(case: str, tmp_path: Path) -> None:
    arguments, environ, told = CASES[case]
    injected = dict.fromkeys([*INJECTED, "OCTAVO_WORKER_PORT", "OCTAVO_KV_SERVICE_HOST"], VALUE)
    lines = ended(arguments, {**environ, **injected}, tmp_path)
    assert warnings(lines) == told
    # It went on to what ends it here.
    assert "missing" in json.loads(lines[-1])["message"]
