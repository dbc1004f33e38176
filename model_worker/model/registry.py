"""How a checkpoint's architecture is run: natively, or by transformers' own modules over the paged pool."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from kernels import RaggedBatch
from model_worker.model.config import ModelConfig, architecture_of
from model_worker.model.families import FAMILIES
from model_worker.model.refusals import refuse_unsupported


class CausalLM(Protocol):
    """A model that computes on the paged pool. `DecoderModel.forward` documents the shapes."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: RaggedBatch,
        pool: torch.Tensor,
        logits_at: torch.Tensor,
    ) -> torch.Tensor: ...


def is_native(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json's architecture is one of the native families.

    Raises UnsupportedModelError for a kind of model that no path runs, CheckpointError when it names no architecture.
    """
    refuse_unsupported(raw)
    return architecture_of(raw) in FAMILIES
