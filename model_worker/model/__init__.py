"""Models: reading a checkpoint, and the native forward pass on the paged pool."""

from model_worker.model.config import ModelConfig
from model_worker.model.errors import CheckpointError, ModelLoadError, UnsupportedModelError
from model_worker.model.gguf_convert import convert_gguf
from model_worker.model.loader import LoadedModel, load_model, local_model, read_config

__all__ = [
    "CheckpointError",
    "LoadedModel",
    "ModelConfig",
    "ModelLoadError",
    "UnsupportedModelError",
    "convert_gguf",
    "load_model",
    "local_model",
    "read_config",
]
