"""Every published report about workers is a test (tests/data/worker_field_reports.json says which)."""

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
REPORTS: list[dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "worker_field_reports.json").read_text())
# All whose service is the model worker.
PUBLISHED = {"B05", "B35", "B38", "B40", "B48", "B56", "B64", "B66", "B68", "B76", "B77"}


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_no_report_is_left_out() -> None:
    assert sorted(report["id"] for report in REPORTS) == sorted(PUBLISHED)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_its_tests_are_there(report: dict[str, Any]) -> None:
    assert report["tests"]
    assert report["what"]
    for name in report["tests"]:
        file, _, function = name.partition("::")
        assert function.startswith("test_")
        assert function in functions_of(file), name
