"""The model families Octavo runs natively, by the architecture name in config.json."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from kernels import RaggedBatch
from model_worker.model.config import ModelConfig, architecture_of, read_llama_config
from model_worker.model.errors import UnsupportedModelError
from model_worker.model.llama import LlamaModel, ReadTensor


class CausalLM(Protocol):
    """A model that computes on the paged pool. `LlamaModel.forward` documents the shapes."""

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: RaggedBatch,
        pool: torch.Tensor,
        logits_at: torch.Tensor,
    ) -> torch.Tensor: ...


class Family(NamedTuple):
    """How one architecture is read and built."""

    read_config: Callable[[Mapping[str, Any], Mapping[str, Any]], ModelConfig]
    """(config.json, generation_config.json) -> configuration"""
    tensor_shapes: Callable[[ModelConfig], dict[str, tuple[int, ...]]]
    build: Callable[[ModelConfig, ReadTensor, torch.dtype, torch.device], CausalLM]


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(read_llama_config, LlamaModel.tensor_shapes, LlamaModel),
}


def family_of(raw: Mapping[str, Any]) -> Family:
    """The family of a config.json. Raises UnsupportedModelError naming the supported ones."""
    architecture = architecture_of(raw)
    family = FAMILIES.get(architecture)
    if family is None:
        supported = ", ".join(sorted(FAMILIES))
        raise UnsupportedModelError(f"architecture {architecture!r} is not supported; supported: {supported}")
    return family
