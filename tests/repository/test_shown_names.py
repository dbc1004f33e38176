"""What the pages name beside commands is there: files, flags, variables, Python; a target makes each picture."""

import ast
import importlib
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import command_checks
import pytest
from shown_commands import PAGES, ROOT, blocks, inline, text_of

pytestmark = pytest.mark.unit

# Files that a reader may write, and services look for.
MADE = {"octavo.toml", "tenants.toml"}


@cache
def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [file for file in done.stdout.split() if (ROOT / file).is_file()]


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


@pytest.fixture(scope="module")
def variables() -> set[str]:
    """Of services, commands, compose files, scripts and suites."""
    sources = [ROOT / file for file in tracked() if Path(file).suffix in (".py", ".sh", ".yml", ".yaml", ".example")]
    text = "".join(map(command_checks.help_of, command_checks.SERVICES))
    text += "".join(path.read_text() for path in (*sources, ROOT / "Makefile"))
    return set(re.findall(r"\bOCTAVO_[A-Z_]*[A-Z]\b", text)) | {
        f"OCTAVO_CONFORMANCE_{flag.removeprefix('--').replace('-', '_').upper()}"
        for flag in command_checks.suite_flags("tests/conformance/gateway")
    }


@pytest.mark.parametrize("page", PAGES)
def test_variables_that_a_page_names_exist(page: str, variables: set[str]) -> None:
    named = set(re.findall(r"\bOCTAVO_[A-Z_]*[A-Z]\b", text_of(page)))
    # That of a setting `n`, whichever it is.
    assert named - variables <= {"OCTAVO_GATEWAY_N"}, named - variables


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
