"""Every command that the pages show is one, and something runs it."""

import shlex
import shutil
import subprocess
from pathlib import Path

import command_checks
import pytest
from shown_commands import PAGES, PROGRAM, ROOT, Command, blocks, commands, parsed, typed

pytestmark = pytest.mark.unit

README, COMPOSE, CLUSTER = "tests/repository/test_readme.py", "make compose-test", "tests/repository/test_kubernetes.py"
OPERATING, SIMULATE = "tests/cli/test_operator_commands.py", "tests/cli/test_simulate_command.py"
REVOKED = CONTAINER_TLS = "tests/compose/test_compose_secrets.py"
PRINTED, TENANTS = "tests/cli/test_command_pages.py", "tests/repository/test_tenants_page.py"
# What runs a command that a block shows: page, how the command begins, and the test or target. Where neither a test nor
# a target does, why not.
RUN_BY: list[tuple[str, str, str]] = [
    ("README.md", "make serve", README),
    ("README.md", ".venv/bin/octavo", README),
    ("README.md", "make model", "make model"),
    ("README.md", "cp", "tests/compose/test_compose_config.py"),
    ("README.md", "sed", "tests/repository/test_shown_commands.py"),
    ("README.md", "docker compose", COMPOSE),
    ("README.md", "curl", README),
    ("docs/clients.md", "make clients-test", "make clients-test"),
    ("docs/clients.md", "tests/clients/setup.sh", "make clients-test"),
    ("docs/clients.md", "octavo serve", README),
    ("docs/clients.md", "benchmarks/aiperf.sh", "not run: another project's load generator, 1.2 GB"),
    ("docs/conformance.md", "pytest", "tests/repository/test_suites_by_address.py"),
    ("docs/containers.md", "docker", COMPOSE),
    ("docs/containers.md", "deploy/certificates.sh", CONTAINER_TLS),
    ("docs/containers.md", "octavo", CONTAINER_TLS),
    ("docs/containers.md", "deploy/roll.sh", "tests/compose/test_compose_roll.py"),
    ("docs/containers.md", "sed", "tests/repository/test_shown_commands.py"),
    ("docs/estimate.md", "octavo estimate", PRINTED),
    ("docs/gpu.md", "benchmarks/gpu_check.sh", "tests/kernels/interpret/test_gpu_check.py"),
    ("docs/gpu.md", "pip download", "not run: for a machine without an index"),
    ("docs/inspector.md", ".venv/bin/octavo serve", README),
    ("docs/inspector.md", ".venv/bin/octavo inspect --web", "tests/inspector/test_inspector_command.py"),
    ("docs/inspector.md", ".venv/bin/octavo replay", "tests/inspector/test_page_model.py"),
    ("docs/operations.md", "octavo inspect --live", "tests/cli/test_live_process.py"),
    ("docs/operations.md", "octavo drain", OPERATING),
    ("docs/operations.md", "docker compose exec", "tests/compose/test_compose_operators.py"),
    ("docs/operations.md", "octavo", README),
    ("docs/performance.md", "benchmarks/peers/setup.sh", "not run: builds other engines"),
    ("docs/performance.md", ".venv/bin/python benchmarks/serve.py", "tests/repository/test_serving_benchmark.py"),
    ("docs/performance.md", "nice", "not run: a measurement of minutes"),
    ("docs/scaling.md", "", "not run: beside another engine, in an environment of its own"),
    ("docs/simulate.md", "octavo simulate --trace", "make simulate-pictures"),
    ("docs/simulate.md", "octavo simulate", SIMULATE),
    ("docs/tenants.md", "openssl", TENANTS),
    ("docs/tenants.md", "printf", TENANTS),
    ("docs/tenants.md", "sha256sum", TENANTS),
    ("docs/tenants.md", "python -m", "tests/e2e/test_tenants.py"),
    ("docs/tenants.md", "octavo", TENANTS),
    ("docs/tenants.md", "curl", TENANTS),
    ("docs/tenants.md", "cp", REVOKED),
    ("docs/tenants.md", "chmod", REVOKED),
    ("docs/tenants.md", "mv", REVOKED),
    ("docs/tenants.md", "docker compose logs", COMPOSE),
    ("docs/tenants.md", "grpcurl", "not run: another project's client, tests/clients has others"),
    ("docs/tour.md", "octavo tour", PRINTED),
    ("docs/vllm_face.md", "octavo serve", README),
    ("docs/vllm_face.md", "pip install smg", "tests/support/smg_gateway.py"),
    ("docs/vllm_face.md", "smg launch", "tests/support/smg_gateway.py"),
    ("deploy/kubernetes/README.md", "kubectl", CLUSTER),
    ("deploy/kubernetes/README.md", "octavo", OPERATING),
]
FENCED = [command for command in commands() if command.fenced]
NAMED = [command for command in commands() if not command.fenced]


def runner_of(command: Command) -> str:
    line = shlex.join(command.words)
    found = [runner for page, begin, runner in RUN_BY if page == command.page and line.startswith(begin)]
    assert found, f"{command.page}: who runs {line!r}?"
    return found[0]


def name_of(command: Command) -> str:
    return f"{command.page}: {' '.join(command.words)[:60]}"


def test_the_pages_are_read() -> None:
    assert len(PAGES) > 20
    assert len(FENCED) > 60
    assert len(NAMED) > 150


@pytest.mark.parametrize("command", FENCED, ids=name_of)
def test_a_command_that_is_shown_is_one(command: Command) -> None:
    command_checks.check(command)


WRONG = (
    "octavo inspectt",
    "octavo inspect --blocs",
    "octavo estimate llama-3.1-8b --concurrency many",
    "octavo drain",
    "make such-a-mess",
    "make simulate-pictures TRACKS=folder",
    "pytest tests/nowhere",
    "pytest tests/conformance/gateway --gate 127.0.0.1:1",
    "pytest -m slow tests/cli",
    "python -m gatehouse",
    "python -m gateway --listens 127.0.0.1:0",
    "OCTAVO_GATEWAY_TENNANTS=file octavo serve",
    "python benchmarks/nothing.py",
    "benchmarks/step_profile.py --threads 1",
    "benchmarks/gpu_check.sh --devise cpu",
    "docker compose --profile tpu up",
    "docker compose up --scale worker=2",
    "docker compose exec gateway python -m cli drain workers",
    "docker compose exec router python -m cli workers",
    "docker build -f Dockerfile .",
    "kubectl apply -k deploy/kubernetes/overlays/tpu",
    "kubectl -n octavo rollout status deploy/manager",
    "pip install '.[everything]'",
    "curl http://127.0.0.1:8000/v1/complete",
    "curl http://127.0.0.1:8080/v1/models",
    "grpcurl 127.0.0.1:50050 octavo.gateway.v1.GatewayService/Complete",
    "nobody knows",
)


@pytest.mark.parametrize("line", WRONG)
def test_a_command_that_is_none_is_found(line: str) -> None:
    (command,) = parsed("README.md", line, fenced=True)
    with pytest.raises(AssertionError):
        command_checks.check(command)


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_a_line_names_are_some(page: str) -> None:
    for command in NAMED:
        if command.page == page:
            try:
                command_checks.check(command)
            except (AssertionError, ValueError) as error:
                raise AssertionError(f"{command.text}: {error}") from error


@pytest.mark.parametrize("page", PAGES)
def test_a_block_of_commands_says_that_it_is_one(page: str) -> None:
    unmarked = [block for block in blocks(page) if not block.language and any(map(PROGRAM.match, typed(block)))]
    assert [f"{page}:{block.line}" for block in unmarked] == []


@pytest.mark.parametrize("command", FENCED, ids=name_of)
def test_something_runs_it(command: Command) -> None:
    runner = runner_of(command)
    if runner.startswith("make "):
        command_checks.check_make(command, runner.split()[1:])
    elif not runner.startswith("not run: "):
        command_checks.check_file(runner)


def test_nothing_is_listed_that_no_page_shows() -> None:
    shown = [(command.page, shlex.join(command.words)) for command in FENCED]
    assert [row for row in RUN_BY if not any(row[0] == page and line.startswith(row[1]) for page, line in shown)] == []


# --- what is run here


CHANGED = {
    "README.md": ("COMPOSE_PROFILES=gpu", "COMPOSE_PROFILES=cpu"),
    "docs/containers.md": ("OCTAVO_TAG_KV_MANAGER=latest", "OCTAVO_TAG_KV_MANAGER=next"),
}


def test_what_a_page_changes_in_env_is_known() -> None:
    assert [command.page for command in FENCED if command.words[0] == "sed"] == list(CHANGED)


@pytest.mark.parametrize("page", CHANGED)
def test_one_line_of_env_is_changed_by_the_command(page: str, tmp_path: Path) -> None:
    (command,) = [one for one in FENCED if one.words[0] == "sed" and one.page == page]
    env = tmp_path / ".env"
    shutil.copy(ROOT / ".env.example", env)
    before = env.read_text().splitlines()
    subprocess.run(command.words, cwd=tmp_path, check=True)
    changed = [(old, new) for old, new in zip(before, env.read_text().splitlines(), strict=True) if old != new]
    assert changed == [CHANGED[page]]
