"""Texts of transformers on the demo model: what ours must equal, token for token."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from tokenizers import Tokenizer

TOKENS = 64

Reference = TypeVar("Reference")


def prompts(folder: Path) -> dict[str, list[int]]:
    """Prompts by name: short, long, chat, emoji and CJK, code, digits, 1 token, 1,000 tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    licence = (Path(__file__).resolve().parents[2] / "LICENSE").read_text()

    def ids(text: str) -> list[int]:
        encoded: list[int] = tokenizer.encode(text).ids
        return encoded

    chat = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nName three fruits and say why you like each of them.<|im_end|>\n<|im_start|>assistant\n"
    )
    made = {
        "short": ids("The history of the Roman Empire begins with"),
        "long": ids(licence)[1000:1300],
        "chat": ids(chat),
        "emoji and CJK": ids("🎉🐙 八本の足を持つ octopus は、海の中で 안녕하세요 and then 世界 said:"),
        "code": ids("def fibonacci(n):\n    if n < 2:\n        return n\n    return"),
        "digits": ids("In 2018, 2019 and 2020 the numbers were 12,  345 and 6789. In 2021"),
        "1 token": ids("Once"),
        "1,000 tokens": ids(licence)[:1000],
    }
    assert [len(made[name]) for name in ("1 token", "1,000 tokens")] == [1, 1000]
    return made


def greedy(folder: Path, cache: Path) -> dict[str, list[int]]:
    """The next 64 tokens of each prompt in float32, end-of-sequence ignored; cached by model and versions."""
    wanted = prompts(folder)

    def run(model: Any) -> dict[str, list[int]]:
        model.generation_config.eos_token_id = None
        return {name: _generate(model, ids, max_new_tokens=TOKENS)[0] for name, ids in wanted.items()}

    return _cached(folder, cache, "greedy", [TOKENS, wanted], run)


BEAM_PROMPTS = ("short", "chat", "code")
BEAM_CASES: dict[str, dict[str, Any]] = {
    "plain": {"num_beams": 4, "max_new_tokens": 16},
    "early, long texts": {"num_beams": 4, "max_new_tokens": 16, "early_stopping": True, "length_penalty": 2.0},
}


def beams(folder: Path, cache: Path) -> dict[str, dict[str, list[list[int]]]]:
    """The four texts of a beam search in float32, best first, by case and prompt; cached like ``greedy``."""
    wanted = {name: prompts(folder)[name] for name in BEAM_PROMPTS}

    def run(model: Any) -> dict[str, dict[str, list[list[int]]]]:
        return {
            case: {name: _generate(model, ids, num_return_sequences=4, **options) for name, ids in wanted.items()}
            for case, options in BEAM_CASES.items()
        }

    return _cached(folder, cache, "beams", [BEAM_CASES, wanted], run)


def _generate(model: Any, ids: list[int], **options: Any) -> list[list[int]]:
    """The generated tokens of each text, without padding."""
    mask = torch.ones(1, len(ids), dtype=torch.int64)
    output = model.generate(torch.tensor([ids]), attention_mask=mask, do_sample=False, **options)
    eos = model.generation_config.eos_token_id
    texts: list[list[int]] = [text[len(ids) :].tolist() for text in output]
    return [text[: text.index(eos) + 1] if eos in text else text for text in texts]


def _cached(folder: Path, cache: Path, kind: str, key: list[Any], run: Callable[[Any], Reference]) -> Reference:
    versions = [(folder / "octavo-model.json").read_text(), transformers.__version__, torch.__version__]
    digest = hashlib.sha256(json.dumps([*versions, *key]).encode()).hexdigest()
    file = cache / f"{kind}-{digest[:16]}.json"
    if file.is_file():
        stored: Reference = json.loads(file.read_text())
        return stored
    made = run(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    part = file.with_suffix(f".{os.getpid()}.part")  # another process may write the same
    part.write_text(json.dumps(made))
    part.rename(file)
    return made
