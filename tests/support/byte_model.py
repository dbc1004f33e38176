"""A tiny model folder that text can be sent to: random weights, and the gateway tests' tokenizer of single bytes."""

import importlib.util
from pathlib import Path
from typing import Any

from tiny_checkpoints import tiny_checkpoint

_TOKENIZER = Path(__file__).resolve().parents[1] / "gateway" / "service" / "byte_tokenizer.py"


def byte_model(folder: Path, **changes: Any) -> Path:
    """Write it to ``folder``; ``changes`` go to its configuration."""
    spec = importlib.util.spec_from_file_location("byte_tokenizer", _TOKENIZER)
    assert spec is not None
    assert spec.loader is not None
    tokenizer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tokenizer)
    tiny_checkpoint("llama", folder, vocab_size=tokenizer.VOCAB_SIZE, eos_token_id=tokenizer.END_ID, **changes)
    for name, content in tokenizer.tokenizer_files().items():
        (folder / name).write_bytes(content)
    return folder
