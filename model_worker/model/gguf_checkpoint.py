"""GGUF files as checkpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from model_worker.model.checkpoint import sample_range
from model_worker.model.errors import CheckpointError
from model_worker.model.gguf_config import hf_config, hf_generation_config
from model_worker.model.gguf_file import DAMAGE, GgufFile, shape


class GgufCheckpoint:
    """One GGUF file: metadata becomes config.json, tensors have their Hugging Face names and layout."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)

    def __enter__(self) -> "GgufCheckpoint":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close: the reader maps the file, and the map ends with the last tensor that looks into it."""

    def metadata(self, key: str, default: Any = None) -> Any:
        """A metadata value by its full key."""
        return self._file.metadata(key, default)

    def config(self) -> dict[str, Any]:
        """What config.json would say. Raises CheckpointError when a key is missing."""
        try:
            return hf_config(self._file)
        except (*DAMAGE, ArithmeticError) as error:
            raise CheckpointError(f"cannot read {self._file.path}: its metadata do not fit together") from error

    def generation_config(self) -> dict[str, Any]:
        return hf_generation_config(self._file)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape(tensor) for name, tensor in self._file.tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._file.read(name)

    def identity(self) -> Iterator[bytes]:
        path, reader = self._file.path, self._file.reader
        yield str(path.stat().st_size).encode()
        with path.open("rb") as file:
            yield file.read(reader.data_offset)
            for tensor in sorted(reader.tensors, key=lambda tensor: str(tensor.name)):
                first, end = sample_range(tensor.data_offset, tensor.data_offset + tensor.n_bytes)
                file.seek(first)
                yield file.read(end - first)
