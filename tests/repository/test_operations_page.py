"""docs/operations.md tells commands, defaults, errors, metrics and alerts as they are."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import grpc
import pytest
import yaml

from cli import options
from gateway import worker_errors

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


def reasons_of(page: str) -> set[str]:
    return {code for code in codes(page) if re.fullmatch(r"(?!OCTAVO)[A-Z]+_[A-Z_]+", code)} - STATUSES


def test_reasons_of_errors_are_those_that_services_give(page: str) -> None:
    files = [path for folder in (*SERVICES.values(), "service") for path in (ROOT / folder).rglob("*.py")]
    sources = "".join(path.read_text() for path in files)
    reasons = reasons_of(page)
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


def test_every_row_of_the_failure_table_names_a_test_that_shows_it(page: str) -> None:
    found = rows(page, "what ends", "running streams", "whole again, and when", "shown by")
    assert len(found) > 7
    for what, *_, shown in found:
        files = re.findall(r"`(tests/[\w/]+\.py)", shown)
        assert files, what
        sources = {file: (ROOT / file).read_text() for file in files}
        named = re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", shown)
        for place, (file, name) in enumerate(named):
            # `::name` alone is in the file before it.
            file = file or next(one for one, _ in reversed(named[:place]) if one)
            assert re.search(rf"^(?:async )?def {name}\(", sources[file], flags=re.MULTILINE), f"{what}: {name}"
        assert named or "make compose-test" in shown, f"{what}: which test of the file?"


def test_every_reason_of_an_error_is_expected_by_a_test(page: str) -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [one for one in sorted(reasons_of(page)) if f'"{one}"' not in tests and f"({one}" not in tests] == []


def test_a_step_that_failed_is_the_workers_failure_for_clients() -> None:
    failed = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "step 3 failed")
    told = worker_errors.translate("10.0.0.1:50051", failed, tokens=7)
    assert (told.code, told.reason) == (grpc.StatusCode.INTERNAL, "WORKER_FAILED")
    assert "10.0.0.1:50051 failed after 7 tokens" in told.message


def test_troubles_of_workers_are_told_in_these_words(page: str) -> None:
    folders = [*SERVICES.values(), "cli"]
    sources = "".join(path.read_text() for name in folders for path in (ROOT / name).rglob("*.py"))
    told = [code for cells in rows(page, "`octavo workers` says", "it is", "do") for code in codes(cells[0])]
    assert len(told) > 5
    assert [one for one in told if one not in sources] == []
