"""Tiny random-weight checkpoints of every family, made by transformers when a test asks for one.

`initializer_range` is 0.2: at the usual 0.02 all logits are nearly alike, greedy text repeats a handful of tokens and a
wrong model passes. Windows are shorter than the prompts of the tests. Norms and biases, which transformers starts at 1
and 0, are drawn too.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

VOCAB = 199


class Tiny(NamedTuple):
    """How a family's tiny checkpoint is made."""

    architecture: str
    config: str
    settings: dict[str, Any]
    embedding: float = 1.0
    """Multiplies the embedding: a large one that is tied repeats the last token for ever."""


_SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_HEADS_32 = {"head_dim": 32}
_GEMMA = {
    **_HEADS_32,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 24,
    "sliding_window": 9,
    "final_logit_softcapping": 8.0,
}
_EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 2}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [round(1.0 + 0.05 * index, 2) for index in range(12)],
    "long_factor": [round(1.0 + 0.7 * index, 2) for index in range(12)],
}


def _gpt(**changes: Any) -> dict[str, Any]:
    sizes = {"n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 256, "n_inner": 112}
    shared = ("vocab_size", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
    return {**sizes, **{name: _SIZES[name] for name in shared}, **changes}


def _general(**changes: Any) -> dict[str, Any]:
    return {**_SIZES, "num_hidden_layers": 2, **changes}


def _all_heads(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in _general(**changes).items() if name != "num_key_value_heads"}


NATIVE: dict[str, Tiny] = {
    "llama": Tiny("LlamaForCausalLM", "LlamaConfig", {**_SIZES, **_HEADS_32}),
    "mistral": Tiny("MistralForCausalLM", "MistralConfig", {**_SIZES, **_HEADS_32, "sliding_window": 11}),
    "qwen2": Tiny(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**_SIZES, "use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2},
    ),
    "qwen3": Tiny("Qwen3ForCausalLM", "Qwen3Config", {**_SIZES, **_HEADS_32}),
    "gemma2": Tiny(
        "Gemma2ForCausalLM", "Gemma2Config", {**_SIZES, **_GEMMA, "attn_logit_softcapping": 2.0}, embedding=0.25
    ),
    "gemma3": Tiny(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_SIZES, **_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        embedding=0.25,
    ),
    "phi3": Tiny(
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            **_SIZES,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 16,
            "rope_parameters": _LONGROPE,
            "sliding_window": 30,
        },
    ),
    "mixtral": Tiny("MixtralForCausalLM", "MixtralConfig", {**_SIZES, **_EXPERTS, "num_local_experts": 5}),
    "qwen3_moe": Tiny(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {
            **_SIZES,
            **_EXPERTS,
            **_HEADS_32,
            "num_hidden_layers": 3,
            "num_experts": 6,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
}

GENERAL: dict[str, Tiny] = {
    "gpt2": Tiny("GPT2LMHeadModel", "GPT2Config", _gpt()),
    "gpt_bigcode": Tiny("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _gpt(multi_query=True)),
    "gptj": Tiny("GPTJForCausalLM", "GPTJConfig", _gpt(rotary_dim=8)),
    "gpt_neox": Tiny("GPTNeoXForCausalLM", "GPTNeoXConfig", _all_heads()),
    "opt": Tiny(
        "OPTForCausalLM",
        "OPTConfig",
        _all_heads(ffn_dim=112, word_embed_proj_dim=96, init_std=0.2),
    ),
    "olmo2": Tiny("Olmo2ForCausalLM", "Olmo2Config", _general()),
    "stablelm": Tiny("StableLmForCausalLM", "StableLmConfig", _general()),
    "starcoder2": Tiny("Starcoder2ForCausalLM", "Starcoder2Config", _general(sliding_window=10)),
    "cohere2": Tiny(
        "Cohere2ForCausalLM",
        "Cohere2Config",
        _general(logit_scale=1.0, sliding_window=12, layer_types=["sliding_attention", "full_attention"]),
    ),
    "phi": Tiny("PhiForCausalLM", "PhiConfig", _general()),
    "granite": Tiny("GraniteForCausalLM", "GraniteConfig", _general(attention_multiplier=0.2, logits_scaling=2.0)),
    "gpt_oss": Tiny(
        "GptOssForCausalLM",
        "GptOssConfig",
        _general(head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=10, rope_parameters=None),
    ),
}


def _has_attention_interface(module: str) -> bool:
    """Whether a model's module knows it, by its source: to import one takes seconds."""
    spec = find_spec(module)
    return spec is not None and "ALL_ATTENTION_FUNCTIONS" in Path(str(spec.origin)).read_text()


if not _has_attention_interface("transformers.models.gptj.modeling_gptj"):  # it got it after transformers 5.17
    del GENERAL["gptj"]

FAMILIES: dict[str, Tiny] = NATIVE | GENERAL


def tiny_checkpoint(family: str, folder: Path, **changes: Any) -> Path:
    """Writes the tiny checkpoint of a family to `folder` and returns it; `changes` go to its configuration."""
    tiny = FAMILIES[family]
    config = getattr(transformers, tiny.config)(**{**tiny.settings, **changes})
    torch.manual_seed(7)
    model = getattr(transformers, tiny.architecture)(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(tiny.embedding)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or parameter.dim() == 1:
                middle = 1.0 if bool((parameter == 1).all()) else 0.0
                parameter.uniform_(middle - 0.5, middle + 0.5)
    model.save_pretrained(folder)
    return folder
