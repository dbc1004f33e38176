"""Models: reading a checkpoint, and the native forward pass on the paged pool.

What needs torch is imported when it is first asked for: torch takes seconds, and a wrong folder is told before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from model_worker.model.config import ModelConfig
from model_worker.model.errors import CheckpointError, ModelLoadError, UnsupportedModelError

if TYPE_CHECKING:
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

_MODULES = {
    "LoadedModel": "loader",
    "convert_gguf": "gguf_convert",
    "load_model": "loader",
    "local_model": "loader",
    "read_config": "loader",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
