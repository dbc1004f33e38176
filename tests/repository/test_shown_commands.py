"""Every command and picture of the pages is real, and something runs or makes it."""

import ast
import importlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import command_checks
import pytest
from shown_commands import PAGES, PROGRAM, ROOT, Command, blocks, commands, inline, parsed, text_of, typed

from gateway.tenancy.keys import digest_of

pytestmark = pytest.mark.unit

README, COMPOSE, CLUSTER = "tests/repository/test_readme.py", "make compose-test", "tests/repository/test_kubernetes.py"
OPERATING, SIMULATE = "tests/cli/test_operator_commands.py", "tests/cli/test_simulate_command.py"
PRINTED = "tests/cli/test_command_pages.py"
# What runs a command that a block shows: page, how the command begins, and the test or target. Where neither a test nor
# a target does, why not.
RUN_BY: list[tuple[str, str, str]] = [
    ("README.md", "make serve", README),
    ("README.md", ".venv/bin/octavo", README),
    ("README.md", "make model", "make model"),
    ("README.md", "cp", "tests/compose/test_compose_config.py"),
    ("README.md", "docker compose", COMPOSE),
    ("README.md", "curl", README),
    ("docs/clients.md", "make clients-test", "make clients-test"),
    ("docs/clients.md", "tests/clients/setup.sh", "make clients-test"),
    ("docs/clients.md", "octavo serve", README),
    ("docs/clients.md", "benchmarks/aiperf.sh", "not run: another project's load generator, 1.2 GB"),
    ("docs/conformance.md", "pytest", "tests/repository/test_suites_by_address.py"),
    ("docs/containers.md", "docker", COMPOSE),
    ("docs/containers.md", "sed", "tests/repository/test_shown_commands.py"),
    ("docs/estimate.md", "octavo estimate", PRINTED),
    ("docs/gpu.md", "benchmarks/gpu_check.sh", "tests/kernels/interpret/test_gpu_check.py"),
    ("docs/gpu.md", "pip download", "not run: for a machine without an index"),
    ("docs/inspector.md", ".venv/bin/octavo serve", README),
    ("docs/inspector.md", ".venv/bin/octavo inspect --web", "tests/inspector/test_inspector_command.py"),
    ("docs/inspector.md", ".venv/bin/octavo replay", "tests/inspector/test_page_model.py"),
    ("docs/operations.md", "octavo inspect --live", "tests/cli/test_live_process.py"),
    ("docs/operations.md", "octavo drain", OPERATING),
    ("docs/operations.md", "octavo", README),
    ("docs/performance.md", "benchmarks/peers/setup.sh", "not run: builds other engines"),
    ("docs/performance.md", ".venv/bin/python benchmarks/serve.py", "tests/repository/test_serving_benchmark.py"),
    ("docs/performance.md", "nice", "not run: a measurement of minutes"),
    ("docs/scaling.md", "", "not run: beside another engine, in an environment of its own"),
    ("docs/simulate.md", "octavo simulate --trace", "make simulate-pictures"),
    ("docs/simulate.md", "octavo simulate", SIMULATE),
    ("docs/tenants.md", "openssl", "tests/repository/test_shown_commands.py"),
    ("docs/tenants.md", "printf", "tests/repository/test_shown_commands.py"),
    ("docs/tenants.md", "sha256sum", "tests/repository/test_shown_commands.py"),
    ("docs/tenants.md", "python -m", "tests/e2e/test_tenants.py"),
    ("docs/tenants.md", "octavo", "tests/cli/test_api_keys.py"),
    ("docs/tenants.md", "curl", "tests/gateway/tenancy/test_tenants_process.py"),
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
# Files that a reader makes, or a service finds: octavo.toml, .env.
MADE = {"octavo.toml"}


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


# --- what a line names beside commands


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    files = tracked()
    folders, names = {file.split("/")[0] for file in files}, {Path(file).name for file in files} | MADE
    for word in (word.strip("',()").partition("::")[0] for code in inline(page) for word in code.split()):
        if word.split("/")[0] in folders and "/" in word and re.fullmatch(r"[\w./*-]+", word):
            assert (ROOT / word).exists() or any(ROOT.glob(word)), word
        elif re.fullmatch(r"test_\w+\.py|\w+\.(?:sh|toml|yml|proto|js|mjs)", word):
            assert word in names, word
    for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text_of(page)):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def options(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*map(options, getattr(command, "commands", {}).values()))


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Of services, commands, benchmarks and conformance suites."""
    services = "".join(command_checks.help_of(module) for module in (*command_checks.SERVICES, "service.probe"))
    scripts = [command_checks.Arguments(path.read_text()).known for path in (ROOT / "benchmarks").rglob("*.py")]
    suites = command_checks.suite_flags("tests/conformance/gateway", "tests/conformance/kv_manager")
    return set(re.findall(r"--[a-z][a-z-]+", services)) | options(command_checks.octavo()) | suites.union(*scripts)


@pytest.mark.parametrize("page", PAGES)
def test_flags_that_a_page_names_exist(page: str, flags: set[str]) -> None:
    other = {"docker", "kubectl", "pip", "curl"}
    spans = [code for code in inline(page) if code.split()[0] not in other]
    named = {flag for code in spans for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)}
    # Options of docker compose, where one is named alone.
    assert named - flags <= {"--profile", "--wait", "--scale"}, named - flags


# --- Python


def python_blocks() -> list[tuple[str, str]]:
    """(page, source); of a dialogue, what is typed."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                lines = block.text.splitlines()
                typed_lines = [line.removeprefix(">>> ") for line in lines if line.startswith(">>> ")]
                found.append((page, "\n".join(typed_lines or lines)))
    return found


@pytest.mark.parametrize(("page", "source"), python_blocks())
def test_python_that_is_shown_compiles_and_names_what_there_is(page: str, source: str) -> None:
    tree = ast.parse(source)
    modules: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: importlib.import_module(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origin = importlib.import_module(str(node.module))
                value = getattr(origin, alias.name, None) or importlib.import_module(f"{node.module}.{alias.name}")
                modules[alias.asname or alias.name] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert hasattr(modules[node.value.id], node.attr), f"{page}: {node.value.id}.{node.attr}"


# --- pictures


def pictures() -> list[tuple[str, str]]:
    """(page, the file from the root) of every picture."""
    found = [(page, name) for page in PAGES for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text_of(page))]
    return [(page, (ROOT / page).parent.joinpath(name).resolve().relative_to(ROOT).as_posix()) for page, name in found]


@pytest.mark.parametrize(("page", "picture"), pictures())
def test_a_target_makes_each_picture(page: str, picture: str) -> None:
    assert (ROOT / picture).is_file()
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^([a-z-]+-pictures):.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE))
    assert len(recipes) >= 2
    made = [name for name, recipe in recipes.items() if re.search(rf"\b{re.escape(picture)}\b", recipe)]
    for name, recipe in recipes.items():
        for script in re.findall(r"\S+\.py", recipe):
            if Path(picture).parent == Path(script).parent:
                source = (ROOT / script).read_text()
                made += [name] * (f'take(browser, "{Path(picture).stem}")' in source)
    assert made, f"no target makes {picture}"


def test_no_picture_lies_unseen() -> None:
    files = {file for file in tracked() if file.startswith("docs/") and Path(file).suffix in (".png", ".svg")}
    assert files == {picture for _, picture in pictures()}


# --- what is run here


def test_the_build_that_env_names_is_changed_by_the_command(tmp_path: Path) -> None:
    (command,) = [one for one in FENCED if one.words[0] == "sed"]
    env = tmp_path / ".env"
    shutil.copy(ROOT / ".env.example", env)
    before = env.read_text().splitlines()
    subprocess.run(command.words, cwd=tmp_path, check=True)
    changed = [(old, new) for old, new in zip(before, env.read_text().splitlines(), strict=True) if old != new]
    assert changed == [("OCTAVO_TAG_KV_MANAGER=latest", "OCTAVO_TAG_KV_MANAGER=next")]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page draws keys by openssl, which is not installed")
def test_a_key_and_its_digest_are_what_the_tenants_file_wants() -> None:
    (block,) = [one for one in blocks("docs/tenants.md") if "openssl" in one.text]
    drawn, hashed = [line for line in typed(block) if re.match(r"key=|printf", line)]
    script = f"{drawn}\n{hashed}\nprintf %s $key"
    digest, key = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(bytes.fromhex(key)) == 32
    assert bytes.fromhex(digest.split()[0]) == digest_of(key)
