"""``octavo models list`` and what it reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.model_folders import ModelOnDisk, find_models

pytestmark = pytest.mark.unit


def test_folders_and_gguf_files_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.gguf").write_bytes(b"12345")
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "model-1.safetensors").write_bytes(b"123")
    (folder / "model-2.safetensors").write_bytes(b"4567")
    (folder / "tokenizer.json").write_bytes(b"not a weight")
    broken = tmp_path / "c"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    (tmp_path / "no-model").mkdir()
    assert find_models(tmp_path) == [
        ModelOnDisk(folder, "LlamaForCausalLM", 7),
        ModelOnDisk(tmp_path / "b.gguf", "GGUF", 5),
        ModelOnDisk(broken, "unreadable config.json", 0),
    ]


def test_no_models_says_how_to_get_one(tmp_path: Path, octavo: Any) -> None:
    done = octavo(["models", "list", "--folder", str(tmp_path / "none")])
    assert done.returncode == 1
    assert done.stderr == f"octavo: no model in {tmp_path / 'none'} (fetch one: octavo models fetch smollm2)\n"


def test_an_unknown_demo_model_is_named(octavo: Any) -> None:
    done = octavo(["models", "fetch", "gpt-9"])
    assert (done.returncode, done.stderr) == (1, "octavo: no demo model named gpt-9; there is smollm2\n")


def test_serve_names_a_missing_model(tmp_path: Path, octavo: Any) -> None:
    done = octavo(["serve", "--model", str(tmp_path / "none")])
    assert (done.returncode, done.stderr) == (1, f"octavo: no model at {tmp_path / 'none'}\n")
