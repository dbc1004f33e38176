"""Converting a GGUF file to a Hugging Face folder that any tool reads."""

import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from model_worker.model.files import INDEX_NAME, SINGLE_NAME
from model_worker.model.gguf_checkpoint import GgufCheckpoint
from model_worker.model.gguf_tokenizer import write_tokenizer
from model_worker.model.loader import Progress
from model_worker.model.whole_folder import whole_folder

SHARD_BYTES = 2 * 2**30


def convert_gguf(
    gguf_path: Path, folder: Path, progress: Progress | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes config, generation config, tokenizer, chat template and float32 safetensors of a GGUF file to `folder`.

    float32, so that text from the folder equals text from the file. The folder appears whole or not at all, and
    replaces what stood there. Shards hold up to `shard_bytes`, or one tensor. Raises CheckpointError or
    UnsupportedModelError.
    """
    with whole_folder(folder) as fresh:
        write_gguf_as_hf(GgufCheckpoint(gguf_path), fresh, progress, shard_bytes)


def write_gguf_as_hf(
    checkpoint: GgufCheckpoint, folder: Path, progress: Progress | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """The files of `convert_gguf`, into an existing folder."""
    _write_json(folder / "config.json", {**checkpoint.config(), "dtype": "float32"})
    _write_json(folder / "generation_config.json", checkpoint.generation_config())
    write_tokenizer(checkpoint, folder)
    _write_weights(checkpoint, folder, progress, shard_bytes)


def _write_weights(checkpoint: GgufCheckpoint, folder: Path, progress: Progress | None, shard_bytes: int) -> None:
    sizes = {name: prod(shape) * torch.float32.itemsize for name, shape in checkpoint.shapes().items()}
    total, done = sum(sizes.values()), 0
    shards = _shards(sizes, shard_bytes)
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file_name = SINGLE_NAME if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {}
        for name in names:
            tensors[name] = checkpoint.read(name).contiguous()
            weight_map[name] = file_name
            done += sizes[name]
            if progress is not None:
                progress(done, total)
        save_file(tensors, folder / file_name, metadata={"format": "pt"})
        # safetensors lets nobody else read its files; a service may run as another user than the one who converts.
        (folder / file_name).chmod((folder / "config.json").stat().st_mode)
    if len(shards) > 1:
        _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(sizes: dict[str, int], shard_bytes: int) -> list[list[str]]:
    """Names in their order, cut wherever the next tensor would not fit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
