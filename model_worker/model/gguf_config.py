"""What config.json would say about a GGUF file, from its metadata."""

from typing import Any

from model_worker.model.errors import UnsupportedModelError
from model_worker.model.gguf_file import GgufFile, shortest
from model_worker.model.gguf_rope import rope_scaling


def hf_config(file: GgufFile) -> dict[str, Any]:
    """The contents of config.json. Raises CheckpointError when a key is missing."""
    if int(file.optional("expert_count", 0)):
        raise UnsupportedModelError("experts in a GGUF file are not supported; supported: safetensors of such models")
    hidden_size, heads = int(file.required("embedding_length")), int(file.required("attention.head_count"))
    kv_heads = file.optional("attention.head_count_kv", heads)
    if not isinstance(kv_heads, int):
        raise UnsupportedModelError("KV heads that differ from layer to layer are not supported")
    head_dim = int(file.optional("attention.key_length", hidden_size // heads))
    if file.optional("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError("values of another size than keys are not supported")
    return {
        "architectures": [file.architecture.hf_name],
        "model_type": file.architecture.model_type,
        "hidden_size": hidden_size,
        "num_hidden_layers": int(file.required("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": int(file.required("feed_forward_length")),
        "vocab_size": int(file.tensor("model.embed_tokens.weight").shape[-1]),
        "max_position_embeddings": int(file.required("context_length")),
        "rms_norm_eps": shortest(file.required("attention.layer_norm_rms_epsilon")),
        "hidden_act": file.architecture.activation,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in file.tensors,
        "mlp_bias": "model.layers.0.mlp.up_proj.bias" in file.tensors,
        "tie_word_embeddings": "lm_head.weight" not in file.tensors,
        **_rope(file, head_dim),
        **_windows(file),
        **_gemma(file, hidden_size, heads, head_dim),
        **hf_generation_config(file),
    }


def hf_generation_config(file: GgufFile) -> dict[str, Any]:
    """The contents of generation_config.json."""
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    ids = {name: file.metadata(f"tokenizer.ggml.{key}_token_id") for key, name in names.items()}
    return {name: token for name, token in ids.items() if token is not None}


def _rope(file: GgufFile, head_dim: int) -> dict[str, Any]:
    theta = shortest(file.optional("rope.freq_base", 10000.0))
    rotary = int(file.optional("rope.dimension_count", head_dim))
    scaling = rope_scaling(file, theta, head_dim)
    found: dict[str, Any] = {"rope_theta": theta, "rope_scaling": scaling}
    if rotary != head_dim:
        found["partial_rotary_factor"] = rotary / head_dim
    if scaling is not None and "original_max_position_embeddings" in scaling:
        found["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]
    if (local := file.optional("rope.freq_base_swa", None)) is not None:
        found["rope_local_base_freq"] = shortest(local)
    return found


def _windows(file: GgufFile) -> dict[str, Any]:
    """Which layers have the window is known from the architecture, unless the file says it."""
    window = int(file.optional("attention.sliding_window", 0))
    if not window:
        return {"sliding_window": None}
    found: dict[str, Any] = {"sliding_window": window, "use_sliding_window": True}
    pattern = file.optional("attention.sliding_window_pattern", None)
    if isinstance(pattern, list):
        found["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    elif pattern is not None:
        found["sliding_window_pattern"] = int(pattern)
    return found


def _gemma(file: GgufFile, hidden_size: int, heads: int, head_dim: int) -> dict[str, Any]:
    if file.architecture.scalar_by_heads is None:
        return {}
    large = file.required("block_count") == file.architecture.scalar_by_heads
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return {
        "hidden_activation": file.architecture.activation,
        "query_pre_attn_scalar": hidden_size // heads if large else head_dim,
        **{name: None if (cap := file.optional(name, None)) is None else shortest(cap) for name in caps},
    }
