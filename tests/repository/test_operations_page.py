"""docs/operations.md tells commands, defaults, errors, metrics and alerts as they are."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cli import options
from cli.commands import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SERVICES = {"gateway": "gateway", "model worker": "model_worker", "KV manager": "kv_manager"}
COMPOSE = {"gateway": "gateway", "model worker": "model_worker", "KV manager": "kv_manager"}
# Words in capitals that are no reason of an error of ours.
STATUSES = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNAUTHENTICATED", "INTERNAL"}

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "operations.md").read_text()


def codes(text: str) -> list[str]:
    """What stands in backticks, and the lines of fenced blocks."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line for block in fenced for line in block.splitlines()] + inline


def rows(text: str, *head: str) -> list[list[str]]:
    """The cells of the table with this head."""
    first = re.escape(f"| {' | '.join(head)} |")
    (found,) = re.findall(rf"^{first}\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.splitlines()]


@cache
def help_of(module: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return " ".join(done.stdout.split())


def default_of(module: str, flag: str) -> str:
    (default,) = re.findall(rf"{flag} [A-Z]+ [^(]*\(default: ([^;]+);", help_of(module))
    return str(default)


def test_commands_exist_with_their_options(page: str) -> None:
    commands = [code for code in codes(page) if re.match(r"octavo [a-z]", code)]
    assert len(commands) > 15
    for line in commands:
        words = shlex.split(line, comments=True)[1:]
        command: Any = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), line
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_variables_and_flags_of_commands_exist(page: str) -> None:
    variables = {
        options.GATEWAY_VARIABLE, options.WORKER_VARIABLE, options.MANAGER_VARIABLE, options.API_KEY_VARIABLE,
        options.CA_VARIABLE, options.CERTIFICATE_VARIABLE, options.KEY_VARIABLE,
    }  # fmt: skip
    text = " ".join(help_of(module) for module in SERVICES.values())
    named = set(re.findall(r"\bOCTAVO_\w+", page))
    assert variables <= named
    assert [name for name in named - variables if name not in text] == []


def test_grace_times_are_the_defaults_and_what_runs_the_services_waits_for_them(page: str) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    told = rows(page, "service", "`--grace-seconds`", "and then", "wait before a kill")
    assert [row[0] for row in told] == list(SERVICES)
    for service, grace, _, wait in told:
        assert grace == default_of(SERVICES[service], "--grace-seconds")
        seconds = float(wait.removesuffix(" s"))
        assert seconds >= float(grace) + 5
        assert float(compose[COMPOSE[service]]["stop_grace_period"].removesuffix("s")) >= seconds


def test_limits_are_the_defaults(page: str) -> None:
    limits = rows(page, "limit", "default", "what is beyond it")
    assert len(limits) > 5
    short = {"gateway": "gateway", "worker": "model_worker", "manager": "kv_manager"}
    for name, default, _ in limits:
        (flag,) = re.findall(r"`(--[\w-]+)`", name)
        of = short.get(name.split()[-1])
        modules = [module for module in short.values() if of in (None, module) and f"{flag} " in help_of(module)]
        assert [default_of(module, flag) for module in modules] == [default], name


def test_reasons_of_errors_are_those_that_services_give(page: str) -> None:
    files = [path for folder in (*SERVICES.values(), "service") for path in (ROOT / folder).rglob("*.py")]
    sources = "".join(path.read_text() for path in files)
    reasons = {code for code in codes(page) if re.fullmatch(r"(?!OCTAVO)[A-Z]+_[A-Z_]+", code)} - STATUSES
    assert len(reasons) > 8
    assert [one for one in reasons if f'"{one}"' not in sources and f"{one} =" not in sources] == []


def test_metrics_and_alerts_that_are_named_exist(page: str) -> None:
    tables = (DOCS / "observability.md").read_text()
    metrics = set(re.findall(r"\boctavo_(?:gateway|worker|kv)_\w+", page))
    assert metrics
    assert [name for name in metrics if f"| `{name}` |" not in tables] == []
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    assert [row[0] for row in rows(tables, "alert", "says", "look at")] == alerts
    assert set(re.findall(r"\bOctavo[A-Z]\w+", page)) <= set(alerts)


def test_places_on_other_pages_exist(page: str) -> None:
    links = re.findall(r"\]\((\w+\.md)#([\w-]+)\)", page)
    assert links
    for name, place in links:
        titles = re.findall(r"^#+ (.+)$", (DOCS / name).read_text(), flags=re.MULTILINE)
        assert place in [title.lower().replace(" ", "-") for title in titles], f"{name}#{place}"
