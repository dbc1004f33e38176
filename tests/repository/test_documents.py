"""The documents say what is so: the map is complete, tables match the code, words are explained."""

import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kv_manager.core.manager import Manager
from octavo.kv.v1 import inspect_pb2

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def architecture() -> str:
    return (ROOT / "docs" / "architecture.md").read_text()


@pytest.fixture(scope="module")
def make_map() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "make_map.py"))


def test_the_map_names_every_module(architecture: str, make_map: dict[str, Any]) -> None:
    rendered = make_map["render"]()
    assert len(make_map["modules"]()) > 80
    assert "it does not say" not in rendered
    assert make_map["put_into"](architecture, rendered) == architecture, "run make map"


def test_the_design_keeps_its_numbers(architecture: str) -> None:
    numbers = re.findall(r"^##+ (\d+(?:\.\d+)?)\.? ", architecture, flags=re.MULTILINE)
    assert numbers == [
        *("1", "2", "3", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "3.10"),
        *("4", "5", "6", "7", "8", "9", "10"),
    ]


def test_the_manager_serves_the_whole_contract_as_the_design_says(architecture: str) -> None:
    names = {value for value in inspect_pb2.Capability.values() if value}
    assert len(names) > 5
    assert set(Manager().get_capabilities().capabilities) == names
    assert "- KV manager: nothing; it serves every capability of the contract" in architecture


@cache
def help_of(module: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return " ".join(done.stdout.split())


def settings_rows() -> list[tuple[str, ...]]:
    readme = (ROOT / "README.md").read_text()
    return re.findall(r"^\| `(\w+)` \| `(--[\w-]+)` \| (?:`([^`]*)`)? ?\| ", readme, flags=re.MULTILINE)


def test_the_settings_table_is_read() -> None:
    assert len(settings_rows()) == 30


@pytest.mark.parametrize(("module", "flag", "default"), settings_rows())
def test_settings_have_the_defaults_the_readme_tells(module: str, flag: str, default: str) -> None:
    text = help_of(module)
    assert re.search(rf"{flag}\b", text)
    if default:
        after = text.split(f"{flag} ", 2)[-1]
        assert f"(default: {default};" in after[:400]


def test_words_of_the_glossary_are_sorted() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    words = [word for word in re.findall(r"^\| ([^|]+) \| ", glossary, flags=re.MULTILINE) if word != "word"]
    assert words == sorted(words, key=str.lower)
    assert len(words) > 30
