"""What kind of model lies in a folder, read from its configuration only."""

import json
from dataclasses import dataclass
from pathlib import Path

WEIGHT_SUFFIXES = (".safetensors", ".gguf")


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A Hugging Face folder or a GGUF file. ``size_bytes`` counts the weights."""

    path: Path
    architecture: str
    size_bytes: int


def find_models(folder: Path) -> list[ModelOnDisk]:
    """The models directly inside ``folder``, by name."""
    if not folder.is_dir():
        return []
    found = (_read(path) for path in sorted(folder.iterdir()))
    return [model for model in found if model is not None]


def _read(path: Path) -> ModelOnDisk | None:
    if path.suffix == ".gguf" and path.is_file():
        return ModelOnDisk(path, "GGUF", path.stat().st_size)
    configuration = path / "config.json"
    if not configuration.is_file():
        return None
    try:
        architectures = json.loads(configuration.read_text(encoding="utf-8")).get("architectures") or ["unknown"]
    except (ValueError, AttributeError):
        return ModelOnDisk(path, "unreadable config.json", 0)
    size = sum(file.stat().st_size for file in path.iterdir() if file.suffix in WEIGHT_SUFFIXES)
    return ModelOnDisk(path, architectures[0], size)
