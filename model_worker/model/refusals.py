"""Kinds of models that are recognised in config.json and not run, each with its reason."""

from collections.abc import Callable, Mapping
from typing import Any

from model_worker.model.config import architecture_of
from model_worker.model.errors import UnsupportedModelError
from model_worker.model.families import FAMILIES

SUPPORTED = (
    f"supported: {', '.join(FAMILIES)}, and every decoder-only language model of transformers that calls its attention "
    "through the attention interface"
)

_MULTIMODAL = ("vision_config", "audio_config", "text_config", "image_token_id", "image_token_index")


def _encoder_decoder(raw: Mapping[str, Any]) -> str | None:
    return (
        "is an encoder-decoder: its cross attention has no place in the pool" if raw.get("is_encoder_decoder") else None
    )


def _multimodal(raw: Mapping[str, Any]) -> str | None:
    found = next((name for name in _MULTIMODAL if raw.get(name) is not None), None)
    return f"takes more than text ({found} in config.json)" if found else None


def _quantised(raw: Mapping[str, Any]) -> str | None:
    given = raw.get("quantization_config")
    if not given:
        return None
    method = given.get("quant_method", "an unknown method") if isinstance(given, Mapping) else given
    return f"is quantised by {method}, which is not read: give unquantised safetensors or a GGUF file"


def _latent_attention(raw: Mapping[str, Any]) -> str | None:
    return "keeps latents instead of keys and values (MLA)" if raw.get("kv_lora_rank") else None


def _chunked_attention(raw: Mapping[str, Any]) -> str | None:
    kinds = raw.get("layer_types")
    chunked = (isinstance(kinds, list) and "chunked_attention" in kinds) or raw.get("attention_chunk_size")
    return "attends in chunks, which no kernel here does" if chunked else None


def _bidirectional(raw: Mapping[str, Any]) -> str | None:
    return "attends in both directions" if raw.get("use_bidirectional_attention") else None


_REASONS: tuple[Callable[[Mapping[str, Any]], str | None], ...] = (
    _quantised,
    _encoder_decoder,
    _multimodal,
    _latent_attention,
    _chunked_attention,
    _bidirectional,
)


def refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError when a config.json describes a kind of model that is not run."""
    for why in _REASONS:
        if reason := why(raw):
            raise UnsupportedModelError(f"{architecture_of(raw)} {reason}; {SUPPORTED}")
