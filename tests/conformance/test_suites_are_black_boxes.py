"""The suites hold for any implementation: they import the stubs and what any client has, and no module of ours."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

SUITES = Path(__file__).parent
OURS = {"kv_manager", "model_worker", "gateway", "kernels", "service", "cli"}


def imported(path: Path) -> Iterator[str]:
    """The top-level names of everything that a file imports, inside of functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_no_suite_imports_an_implementation() -> None:
    files = sorted(SUITES.rglob("*.py"))
    assert len(files) > 20
    assert {path.name: names for path in files if (names := OURS.intersection(imported(path)))} == {}
    # The stubs are what they are written against.
    assert sum("octavo" in imported(path) for path in files) > 10
