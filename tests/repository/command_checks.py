"""Whether a command that a page shows is one: its program is there, and takes what it is given.

A check gets the words after the program's name. Words in capitals stand for what a reader puts there.
"""

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml
from shown_commands import ROOT, Command

from cli.commands import app
from octavo.gateway.v1 import gateway_pb2

SERVICES = ("gateway", "kv_manager", "model_worker")
# What a reader puts in the place of a word in capitals, where its kind matters.
STAND_INS = {"HOST:PORT": "127.0.0.1:1", "HOST:50051": "127.0.0.1:50051", "N": "1", "S": "1", "GiB": "1"}
ELLIPSIS = "..."
PYTEST_FLAGS = {"-m", "-k", "-s", "-q", "-n"}


@cache
def help_of(module: str) -> str:
    """What a module prints about its options."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def flags_of(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]


def check_flags(words: list[str], text: str) -> None:
    """Every flag is one that a text of help has."""
    unknown = [flag for flag in flags_of(words) if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text)]
    assert not unknown, unknown


def check_file(name: str) -> None:
    assert (ROOT / name).exists(), f"{name} does not exist"


# --- octavo


@cache
def octavo() -> Any:
    """The command line."""
    return typer.main.get_command(app)


def check_octavo(command: Command, words: list[str]) -> None:
    """Parsed by the command line itself; one that leaves arguments out has options that are there."""
    words = [STAND_INS.get(word, word) for word in words]
    found = octavo()
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0)]
    whole = command.fenced and ELLIPSIS not in words
    assert not (whole and hasattr(found, "commands")), f"{words[:1]} is no command"
    if whole:
        try:
            found.make_context("octavo", words)
        except Exception as error:  # typer does not export the base of its own
            raise AssertionError(f"{words}: {error}") from error
        return
    known = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    assert set(flags_of(words)) <= known, words
    if hasattr(found, "commands"):
        assert not [word for word in words if not word.startswith("-")], words


# --- Python, and scripts


def suite_flags(*paths: str) -> set[str]:
    """The options that the conftests on the way to these tests add."""
    folders = {folder for path in paths for folder in (ROOT / path, *(ROOT / path).parents)}
    sources = "".join(file.read_text() for folder in folders if (file := folder / "conftest.py").is_file())
    named = re.findall(r'^    "([a-z-]+)": "', sources, flags=re.MULTILINE)
    return {f"--{name}" for name in named} | set(re.findall(r'addoption\("(--[a-z-]+)"', sources))


def check_pytest(command: Command, words: list[str]) -> None:
    paths = [word.partition("::")[0] for word in words if "/" in word]
    for path in paths:
        check_file(path)
    own = {flag for flag in flags_of(words) if flag.startswith("--")}
    assert own <= suite_flags(*paths), words
    assert {flag for flag in flags_of(words) if not flag.startswith("--")} <= PYTEST_FLAGS, words
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    if "-m" in words:
        named = set(re.findall(r"\w+", words[words.index("-m") + 1])) - {"not", "or", "and"}
        assert named <= {marker.partition(":")[0] for marker in markers}, named


def check_python(command: Command, words: list[str]) -> None:
    if words[0] != "-m":
        check_script(command, words)
        return
    module, arguments = words[1], words[2:]
    assert importlib.util.find_spec(module) is not None, f"there is no module {module}"
    if module in (*SERVICES, "service.probe"):
        check_flags(arguments, help_of(module))


class Arguments(ast.NodeVisitor):
    """The options of a script: what it calls ``add_argument`` with."""

    def __init__(self, source: str) -> None:
        self.known = {"--help"}
        self.needed: set[str] = set()
        self.visit(ast.parse(source))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
            self.known |= names
            if any(word.arg == "required" and getattr(word.value, "value", False) for word in node.keywords):
                self.needed |= names
        self.generic_visit(node)


def check_script(command: Command, words: list[str]) -> None:
    path = ROOT / words[0]
    check_file(words[0])
    flags = set(flags_of(words[1:]))
    if path.suffix == ".py":
        arguments = Arguments(path.read_text())
        assert flags <= arguments.known, flags - arguments.known
        # A script that is only spoken of is named by its path alone.
        if flags or command.fenced:
            assert arguments.needed <= flags, f"{words[0]} needs {arguments.needed - flags}"
        return
    assert os.access(path, os.X_OK), f"{words[0]} cannot be started"
    sources = [path, *path.with_suffix("").glob("*.py")]
    assert [flag for flag in flags if not any(f'"{flag}"' in source.read_text() for source in sources)] == []


# --- what others have made


def check_make(command: Command, words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, equals, _ = word.partition("=")
        if equals:
            assert re.search(rf"\$\({name}\)|^export {name}\b", makefile, flags=re.MULTILINE), f"{name} is not used"
        else:
            assert re.search(rf"^{name}:", makefile, flags=re.MULTILINE), f"there is no target {name}"


def check_docker(command: Command, words: list[str]) -> None:
    if words[0] == "build":
        for flag, value in itertools.pairwise(words):
            if flag == "-f":
                check_file(value)
        return
    if words[0] in ("tag", "stop"):
        return
    assert words[0] == "compose", words
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = document["services"]
    if words[1:2] == ["exec"]:
        assert words[2] in services, words[2]
        assert words[3:6] == ["python", "-m", "cli"], words
        check_octavo(command, words[6:])
        return
    profiles = {profile for service in services.values() for profile in service.get("profiles", ())}
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        if flag == "--profile":
            assert value in profiles, value
        if flag == "--scale":
            assert value.partition("=")[0] in services, value
        if flag == "-f":
            check_file(value)
        if flag == "--no-deps":
            assert value in services, value


def check_kubectl(command: Command, words: list[str]) -> None:
    base = "".join(path.read_text() for path in (ROOT / "deploy" / "kubernetes" / "base").glob("*.yaml"))
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        if flag in ("-k", "-f") and value != "OVERLAY":
            check_file(value)
        if flag == "-n":
            assert f"namespace: {value}" in base, value
        kind, slash, name = flag.partition("/")
        if slash and "/" not in name and kind in ("deploy", "statefulset"):
            assert re.search(rf"^kind: {kind}\w*\nmetadata:\n  name: {name}$", base, flags=re.MULTILINE | re.I), flag


def check_pip(command: Command, words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        if found := re.fullmatch(r"(?:\.|octavo)\[([\w,-]+)\]", word):
            assert set(found[1].split(",")) <= set(extras), word
        if word.startswith("constraints/"):
            check_file(word)


def check_curl(command: Command, words: list[str]) -> None:
    """The address is the gateway's own, and the path one that it serves."""
    from gateway.http import openapi
    from gateway.inspector import site

    (url,) = [word for word in words if word.startswith("http")]
    found = re.fullmatch(r"http://([\w.:]+)(/[\w/.-]*)(?:\?.*)?", url)
    assert found is not None, url
    assert f"(default: {found[1]};" in " ".join(help_of("gateway").split()), found[1]
    assert found[2] in {*openapi.description("1")["paths"], *site.DATA, *site.OPEN}, found[2]


def check_grpcurl(command: Command, words: list[str]) -> None:
    services = gateway_pb2.DESCRIPTOR.services_by_name.values()
    names = {service.full_name for service in services}
    names |= {f"{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert words[-1] in names, words[-1]


def check_foreign(command: Command, words: list[str]) -> None:
    """Files of ours that it works on are there."""
    for word in words:
        if word == ".env.example" or word.startswith(("deploy/", "docs/")):
            check_file(word)


Check = Callable[[Command, list[str]], None]
PROGRAMS: Mapping[str, Check] = {
    "octavo": check_octavo,
    "pytest": check_pytest,
    "python": check_python,
    "python3.11": check_python,
    "make": check_make,
    "docker": check_docker,
    "kubectl": check_kubectl,
    "pip": check_pip,
    "curl": check_curl,
    "grpcurl": check_grpcurl,
    **dict.fromkeys(("cp", "mv", "chmod", "sed", "openssl", "printf", "sha256sum", "smg"), check_foreign),
}


def check(command: Command) -> None:
    """Fails where a command is none."""
    words = list(command.words)
    while words[0] in ("nice", "bash"):
        words = [
            word for place, word in enumerate(words) if place and not (place < 3 and re.fullmatch(r"-n|-?\d+", word))
        ]
    for name in command.environ:
        if name.startswith("OCTAVO_"):
            assert any(f"${name}" in help_of(module) for module in SERVICES) or name in _variables(), name
    program, arguments = words[0], words[1:]
    if "/" in program and not re.fullmatch(r"[\w.]+/bin/[\w.]+", program):
        check_script(command, words)
        return
    known = PROGRAMS.get(Path(program).name)
    assert known is not None, f"nobody checks {program}"
    known(command, [word for word in arguments if word != ELLIPSIS] if known is not check_octavo else arguments)


def _variables() -> set[str]:
    from cli import options

    return {value for name, value in vars(options).items() if name.endswith("_VARIABLE")}
