"""Checkpoints: where a model's configuration and tensors come from, and whether they fit together."""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from model_worker.model.errors import CheckpointError
from model_worker.model.files import read_config_json, read_json, some, weight_files

SAMPLE_BYTES = 4096


class Checkpoint(Protocol):
    """A model on disk, its tensors under their Hugging Face names. A context manager: the files close at exit."""

    def config(self) -> dict[str, Any]:
        """Contents of config.json."""

    def generation_config(self) -> dict[str, Any]:
        """Contents of generation_config.json, empty when there is none."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor with its shape."""

    def read(self, name: str) -> torch.Tensor:
        """One tensor on the CPU, in a floating dtype."""

    def identity(self) -> Iterator[bytes]:
        """What tells this checkpoint from another, cheaply: names, sizes, headers and a sample of every tensor."""

    def __enter__(self) -> "Checkpoint": ...

    def __exit__(self, *_: object) -> None: ...


def sample_range(start: int, end: int) -> tuple[int, int]:
    """Up to SAMPLE_BYTES in the middle of a tensor's bytes [start, end): every tensor is sampled, so that a change to
    one layer alone is seen."""
    middle = (start + end) // 2
    first = max(start, middle - SAMPLE_BYTES // 2)
    return first, min(end, first + SAMPLE_BYTES)


def check_tensors(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Raises CheckpointError naming missing, unexpected or misshapen tensors.

    Rotary frequencies are derived from the configuration, and a tied lm_head is the embedding: both may be stored.
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected and not _is_derived(name)]
    if missing or unexpected:
        problems = [f"missing {some(missing)}"] if missing else []
        problems += [f"unexpected {some(unexpected)}"] if unexpected else []
        raise CheckpointError(f"the weights do not match config.json: {'; '.join(problems)}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise CheckpointError(f"tensor {name} has shape {list(found[name])}, config.json makes it {list(shape)}")


def _is_derived(name: str) -> bool:
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"


class SafetensorsCheckpoint:
    """A Hugging Face folder: config.json and safetensors, in one file or sharded by an index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = read_config_json(folder)
        self._files = weight_files(folder)
        self._stack = ExitStack()
        self._handle_of: dict[str, Any] = {}
        try:
            for file in self._files:
                handle = self._stack.enter_context(safe_open(file, framework="pt"))
                self._handle_of.update(dict.fromkeys(handle.keys(), handle))
        except (OSError, SafetensorError) as error:
            self._stack.close()
            raise CheckpointError(f"cannot read {file}: {error}") from error

    def __enter__(self) -> "SafetensorsCheckpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._handle_of.clear()
        self._stack.close()

    def config(self) -> dict[str, Any]:
        return self._config

    def generation_config(self) -> dict[str, Any]:
        path = self._folder / "generation_config.json"
        return read_json(path) if path.exists() else {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(handle.get_slice(name).get_shape()) for name, handle in self._handle_of.items()}

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._handle_of[name].get_tensor(name)
        return tensor

    def identity(self) -> Iterator[bytes]:
        for path in self._files:
            with path.open("rb") as file:
                (header_bytes,) = struct.unpack("<Q", file.read(8))
                header = file.read(header_bytes)
                yield f"{path.name} {path.stat().st_size}".encode()
                yield header
                for name, entry in sorted(json.loads(header).items()):
                    if name == "__metadata__":
                        continue
                    first, end = sample_range(*entry["data_offsets"])
                    file.seek(8 + header_bytes + first)
                    yield file.read(end - first)
