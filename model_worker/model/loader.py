"""Loading a model from a Hugging Face folder or a GGUF file."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import torch

from model_worker.model.checkpoint import Checkpoint, SafetensorsCheckpoint, check_tensors
from model_worker.model.config import ModelConfig
from model_worker.model.errors import CheckpointError, UnsupportedModelError
from model_worker.model.gguf_checkpoint import GgufCheckpoint
from model_worker.model.registry import CausalLM, family_of

Progress = Callable[[int, int], None]
"""(done bytes, total bytes), called after every piece."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. Its KV pool is `PoolShape(.., config.num_layers, config.num_kv_heads, ..)` in `dtype`."""

    model: CausalLM
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    fingerprint: str
    """Hex SHA-256 of configuration, weights and KV dtype: equal means that KV blocks are interchangeable."""


def load_model(
    path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads `path`, a folder with config.json and safetensors or a GGUF file, in one dtype onto one device.

    Progress counts the bytes of the loaded model. Raises CheckpointError or UnsupportedModelError, whose messages say
    what is wrong with the checkpoint or not supported in it.
    """
    if dtype not in DTYPES.values():
        raise UnsupportedModelError(f"{dtype} is not supported; supported: {', '.join(DTYPES)}")
    target = torch.device(device)
    with open_checkpoint(path) as checkpoint:
        family = family_of(checkpoint.config())
        config = family.read_config(checkpoint.config(), checkpoint.generation_config())
        shapes = family.tensor_shapes(config)
        check_tensors(shapes, checkpoint.shapes())

        total, done = sum(map(prod, shapes.values())) * dtype.itemsize, 0

        def read(name: str) -> torch.Tensor:
            nonlocal done
            tensor = checkpoint.read(name)
            done += tensor.numel() * dtype.itemsize
            if progress is not None:
                progress(done, total)
            return tensor

        model = family.build(config, read, dtype, target)
        return LoadedModel(model, config, dtype, target, _fingerprint(config, checkpoint, dtype))


def read_config(path: str | Path) -> ModelConfig:
    """The configuration of a checkpoint, without its weights. Raises as `load_model`."""
    with open_checkpoint(path) as checkpoint:
        return family_of(checkpoint.config()).read_config(checkpoint.config(), checkpoint.generation_config())


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at `path`, to be closed by its context manager. Raises CheckpointError."""
    place = Path(path)
    if not place.exists():
        raise CheckpointError(f"no such model: {place}")
    if place.is_dir():
        return SafetensorsCheckpoint(place)
    return GgufCheckpoint(place)


def _fingerprint(config: ModelConfig, checkpoint: Checkpoint, kv_dtype: torch.dtype) -> str:
    digest = hashlib.sha256()
    described = json.dumps(asdict(config), sort_keys=True).encode()
    for part in (described, str(kv_dtype).encode(), *checkpoint.identity()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
