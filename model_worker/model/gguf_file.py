"""A GGUF file: metadata and tensors, these by their Hugging Face names and in their layout."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from model_worker.model.errors import CheckpointError, UnsupportedModelError
from model_worker.model.files import GGUF_MAGIC, check_gguf
from model_worker.model.gguf_architectures import ARCHITECTURES, TOP_NAMES

# What the reader raises where bytes are not what they should be: errors of numpy and Python, in words about arrays.
DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)


class GgufFile:
    """Tensors are dequantised to float32 when read. Raises CheckpointError or UnsupportedModelError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_gguf(path)
        with path.open("rb") as file:
            file.seek(len(GGUF_MAGIC))
            _check_version(path, file.read(4))
        try:
            self.reader = gguf.GGUFReader(path)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        except DAMAGE as error:
            raise CheckpointError(f"cannot read {path}: its header is damaged, or the file is cut off") from error
        if int(self.metadata("split.count", 1)) > 1:
            raise UnsupportedModelError(f"{path} is one part of a split GGUF; join the parts first")
        self.architecture_name = str(self.metadata("general.architecture"))
        if self.architecture_name not in ARCHITECTURES:
            supported = ", ".join(ARCHITECTURES)
            raise UnsupportedModelError(
                f"GGUF architecture {self.architecture_name!r} is not supported; supported: {supported}"
            )
        self.architecture = ARCHITECTURES[self.architecture_name]
        self.stored = {str(tensor.name): tensor for tensor in self.reader.tensors}
        self.tensors = {self._hf_name(name): tensor for name, tensor in self.stored.items() if name[:5] != "rope_"}

    def metadata(self, key: str, default: Any = None) -> Any:
        """A metadata value by its full key."""
        field = self.reader.fields.get(key)
        try:
            return default if field is None else field.contents()
        except DAMAGE as error:
            raise CheckpointError(f"cannot read {self.path}: its metadata {key} is damaged") from error

    def required(self, key: str) -> Any:
        """A metadata value of the architecture. Raises CheckpointError when there is none."""
        value = self.optional(key, None)
        if value is None:
            raise CheckpointError(f"{self.path} has no metadata {self.architecture_name}.{key}")
        return value

    def optional(self, key: str, default: Any) -> Any:
        """A metadata value of the architecture."""
        return self.metadata(f"{self.architecture_name}.{key}", default)

    def tensor(self, name: str) -> Any:
        """The reader's tensor by its Hugging Face name. Raises CheckpointError when there is none."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path} has no tensor for {name}")
        return self.tensors[name]

    def read(self, name: str) -> torch.Tensor:
        """float32, in the layout of Hugging Face's checkpoints."""
        weights = dequantised(self.tensor(name))
        if self.architecture.norms_plus_one and name.endswith("norm.weight"):
            return weights - 1.0
        if not self.architecture.interleaved:
            return weights
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            return _unpermuted(weights, self.required("attention.head_count"))
        if name.endswith(("k_proj.weight", "k_proj.bias")):
            heads = self.required("attention.head_count")
            return _unpermuted(weights, self.optional("attention.head_count_kv", heads))
        return weights

    def _hf_name(self, name: str) -> str:
        if name in TOP_NAMES:
            return TOP_NAMES[name]
        kind, _, rest = name.partition(".")
        index, _, part = rest.partition(".")
        module, _, leaf = part.rpartition(".")
        known = self.architecture.layer_name(module) if kind == "blk" else None
        return name if known is None else f"model.layers.{index}.{known}.{leaf}"


def _check_version(path: Path, stored: bytes) -> None:
    """Raise UnsupportedModelError for a format that the reader does not know, in either order of bytes."""
    known = gguf.constants.GGUF_VERSION, *gguf.gguf_reader.READER_SUPPORTED_VERSIONS
    version = int.from_bytes(stored, "little")
    if version not in known and int.from_bytes(stored, "big") not in known:
        read = " and ".join(map(str, sorted(set(known))))
        raise UnsupportedModelError(f"{path} is a GGUF file of version {version}; versions {read} are read")


def shape(tensor: Any) -> tuple[int, ...]:
    """GGUF lists the fastest dimension first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def dequantised(tensor: Any) -> torch.Tensor:
    """float32. Raises UnsupportedModelError for a quantisation that the gguf package does not know."""
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise UnsupportedModelError(f"tensor {tensor.name} is quantised as {kind}, which is not supported") from error
    return torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape(tensor)))


def shortest(value: float) -> float:
    """The number a float32 was written for: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _unpermuted(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q and k in the half-split rotary order: GGUF stores them as interleaved pairs.

    A head's rows (0 0' 1 1' 2 2') become (0 1 2 0' 1' 2').
    """
    pairs = weights.reshape(heads, -1, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)
