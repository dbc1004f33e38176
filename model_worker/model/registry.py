"""How a checkpoint's architecture is run: natively, or by transformers' own modules over the paged pool."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from model_worker.model.config import ModelConfig, architecture_of
from model_worker.model.families import FAMILIES
from model_worker.model.paged_model import PagedModel
from model_worker.model.refusals import refuse_unsupported


class CausalLM(PagedModel, Protocol):
    """A model that was loaded."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def capturable(self) -> bool:
        """Whether a forward pass queues the same work whatever its tensors hold, and never waits to read one on the
        host: then a CUDA graph can record it."""
        ...


def is_native(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json's architecture is one of the native families.

    Raises UnsupportedModelError for a kind of model that no path runs, CheckpointError when it names no architecture.
    """
    refuse_unsupported(raw)
    return architecture_of(raw) in FAMILIES
