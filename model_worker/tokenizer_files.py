"""The tokenizer files of a model, handed out so that gateways need no shared folder. Never read for our own use."""

import tempfile
from pathlib import Path

from model_worker.model.gguf_checkpoint import GgufCheckpoint
from model_worker.model.gguf_tokenizer import write_tokenizer

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)


def tokenizer_files(model: Path) -> dict[str, bytes]:
    """Contents by file name, for a model folder or a GGUF file (whose tokenizer is converted).

    Raises:
        ModelLoadError: the GGUF file's tokenizer is not supported.
    """
    if model.is_dir():
        return _read(model)
    with tempfile.TemporaryDirectory(prefix="octavo-") as scratch, GgufCheckpoint(model) as checkpoint:
        write_tokenizer(checkpoint, Path(scratch))
        return _read(Path(scratch))


def _read(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).is_file()}
