"""Greedy text of transformers on the demo model: what ours must equal, token for token."""

import hashlib
import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer

TOKENS = 64


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
    key = hashlib.sha256(
        json.dumps(
            [
                (folder / "octavo-model.json").read_text(),
                transformers.__version__,
                torch.__version__,
                TOKENS,
                wanted,
            ]
        ).encode()
    ).hexdigest()
    file = cache / f"greedy-{key[:16]}.json"
    if file.is_file():
        stored: dict[str, list[int]] = json.loads(file.read_text())
        return stored
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    texts = {}
    for name, ids in wanted.items():
        output = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=TOKENS, do_sample=False
        )
        texts[name] = output[0, len(ids) :].tolist()
    part = file.with_suffix(".part")
    part.write_text(json.dumps(texts))
    part.rename(file)
    return texts
