"""Loading a model from a Hugging Face folder or a GGUF file."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import torch

from kernels import Quantization
from model_worker.model.checkpoint import Checkpoint, SafetensorsCheckpoint, check_tensors
from model_worker.model.config import ModelConfig
from model_worker.model.decoder import DecoderModel
from model_worker.model.decoder_config import read_decoder_config
from model_worker.model.decoder_tensors import tensor_shapes
from model_worker.model.errors import CheckpointError, UnsupportedModelError
from model_worker.model.files import hub_id
from model_worker.model.gguf_checkpoint import GgufCheckpoint
from model_worker.model.registry import CausalLM, is_native

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
    max_context: int | None = None,
    quantization: Quantization | None = None,
) -> LoadedModel:
    """Loads `path`, a folder with config.json and safetensors, a GGUF file or a hub id, in one dtype onto one device.

    Up to `max_context` positions will be served, by default as many as the model was made for: some rotary embeddings
    depend on it. Progress counts the bytes of the loaded model. `quantization` rounds the matrices, the embedding and
    output tables to eight bits at least. Raises CheckpointError or UnsupportedModelError, whose messages say what is
    wrong with the checkpoint or not supported in it.
    """
    if dtype not in DTYPES.values():
        raise UnsupportedModelError(f"{dtype} is not supported; supported: {', '.join(DTYPES)}")
    target = torch.device(device)
    if quantization is not None and (target.type != "cpu" or dtype == torch.float16):
        raise UnsupportedModelError(f"{quantization} weights are supported on CPU beside float32 or bfloat16 KV only")
    place = local_model(path)
    with open_checkpoint(place) as checkpoint:
        if is_native(checkpoint.config()):
            model: CausalLM = _native(checkpoint, dtype, target, progress, max_context, quantization)
        else:
            if quantization is not None:
                raise UnsupportedModelError(f"{quantization} weights are supported for the native families only")
            # transformers takes seconds to import, and the native path needs none of it.
            from model_worker.model.general import load_general

            model = load_general(checkpoint, place, dtype, target, max_context)
        return LoadedModel(
            model, model.config, dtype, target, _fingerprint(model.config, checkpoint, dtype, quantization)
        )


def read_config(path: str | Path, max_context: int | None = None) -> ModelConfig:
    """The configuration of a checkpoint, without its weights. Raises as `load_model`."""
    place = local_model(path)
    with open_checkpoint(place) as checkpoint:
        if is_native(checkpoint.config()):
            return read_decoder_config(checkpoint.config(), checkpoint.generation_config(), max_context)
        from model_worker.model.general import read_general_config

        return read_general_config(checkpoint, place, max_context)


def _native(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
    max_context: int | None,
    quantization: Quantization | None,
) -> DecoderModel:
    config = read_decoder_config(checkpoint.config(), checkpoint.generation_config(), max_context)
    shapes = tensor_shapes(config)
    check_tensors(shapes, checkpoint.shapes())
    total, done = sum(map(prod, shapes.values())) * dtype.itemsize, 0

    def read(name: str) -> torch.Tensor:
        nonlocal done
        tensor = checkpoint.read(name)
        done += tensor.numel() * dtype.itemsize
        if progress is not None:
            progress(done, total)
        return tensor

    return DecoderModel(config, read, dtype, device, quantization)


def local_model(model: str | Path) -> Path:
    """The folder or file of a model: a path that exists, or the snapshot of a hub id, `owner/name[@revision]`.

    Raises CheckpointError when it is neither, and as `hub.fetch`.
    """
    place = Path(model)
    if place.exists():
        return place
    named = hub_id(model)
    if named is None:
        raise CheckpointError(f"no such model: {model}")
    from model_worker.model.hub import fetch

    return fetch(named.name, named.revision)


def open_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in a folder or file, to be closed by its context manager. Raises CheckpointError."""
    if place.is_dir():
        return SafetensorsCheckpoint(place)
    return GgufCheckpoint(place)


def _fingerprint(
    config: ModelConfig, checkpoint: Checkpoint, kv_dtype: torch.dtype, quantization: Quantization | None
) -> str:
    digest = hashlib.sha256()
    # How far a worker goes does not change what it writes; where it does, the rotary embedding says so.
    described = json.dumps({**asdict(config), "max_context": None}, sort_keys=True).encode()
    rounded = [] if quantization is None else [quantization.encode()]
    for part in (described, str(kv_dtype).encode(), *rounded, *checkpoint.identity()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
