"""What the forward pass needs to know of a model, read from Hugging Face's config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_worker.model.errors import CheckpointError, UnsupportedModelError
from model_worker.model.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a decoder-only model."""

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    rope: RopeConfig
    rms_eps: float
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    max_context: int
    """Positions the model was made for: prompt and output together."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Ids that end a generation, possibly none."""


def architecture_of(raw: Mapping[str, Any]) -> str:
    """The architecture named by a config.json. Raises CheckpointError when it names none."""
    names = raw.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError("config.json names no architecture")
    return str(names[0])


def read_llama_config(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """The configuration of a Llama, from the contents of config.json and generation_config.json (may be empty).

    Raises CheckpointError when a field is missing or sizes contradict each other, UnsupportedModelError for an
    activation or a rope scaling the forward pass does not have.
    """
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"activation {activation!r} is not supported; supported: 'silu'")
    hidden_size, num_heads = _size(raw, "hidden_size"), _size(raw, "num_attention_heads")
    num_kv_heads = _size(raw, "num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(f"{num_heads} attention heads cannot share {num_kv_heads} KV heads evenly")
    head_dim = _size(raw, "head_dim", default=hidden_size // num_heads)
    if head_dim % 2:
        raise CheckpointError(f"head_dim {head_dim} is odd, rotary embeddings need pairs")
    max_context = _size(raw, "max_position_embeddings")
    return ModelConfig(
        architecture=architecture_of(raw),
        hidden_size=hidden_size,
        num_layers=_size(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_size=_size(raw, "intermediate_size"),
        vocab_size=_size(raw, "vocab_size"),
        rope=RopeConfig.from_hf(raw, max_context),
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        max_context=max_context,
        bos_token_id=next(iter(_ids(raw, generation, "bos_token_id")), None),
        eos_token_ids=_ids(raw, generation, "eos_token_id"),
    )


def _size(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    if value is None:
        value = default
    if value is None:
        raise CheckpointError(f"config.json has no {name}")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {name} must be a positive integer, got {value!r}")
    return value


def _ids(raw: Mapping[str, Any], generation: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Token ids given as an int, a list or null; generation_config.json wins, as in transformers' generate."""
    value = generation.get(name)
    if value is None:
        value = raw.get(name)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) for token in ids):
        raise CheckpointError(f"{name} must be an integer or a list of integers, got {value!r}")
    return tuple(ids)
