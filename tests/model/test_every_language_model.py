"""Every language model that transformers has, at tiny size: it computes transformers' own logits, or it is refused.

What must not happen is the third thing: a model that loads and answers something else.
"""

import inspect
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_checkpoints import VOCAB
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from model_worker.model import ModelLoadError, load_model

pytestmark = [pytest.mark.model, pytest.mark.soak]

MOST_PARAMETERS = 20_000_000
LENGTHS = (53, 17, 1, 40)
MIXED = [{0: 20}, {0: 13, 1: 9}, {2: 1, 3: 5}, *[{1: 1, 0: 1}] * 8, {3: 35, 0: 12}]
# Sizes under all the names that configurations have for them.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "lru_width"), 96),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim"), 112),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"), 6),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 256),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_key_value_heads", "max_window_layers"), 2),
    **dict.fromkeys(("sliding_window", "attention_window_size"), 10),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("initializer_range", "init_std"), 0.2),
    "head_dim": 16,
    "rotary_dim": 8,
    "hidden_size_per_layer_input": 16,
    "is_decoder": True,
    "use_sliding_window": True,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

_draw = random.Random(11)
PROMPTS = [[_draw.randrange(3, VOCAB) for _ in range(length)] for length in LENGTHS]


def tiny_model(model_type: str) -> transformers.PreTrainedModel:
    """Random norms and biases, too; skips what these sizes do not fit."""
    config_class = CONFIG_MAPPING[model_type]
    model_class = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    known = set(getattr(config_class, "__dataclass_fields__", ())) or set(inspect.signature(config_class).parameters)
    try:
        config = config_class(**{name: value for name, value in SIZES.items() if name in known}, **IDS)
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in model_class(config).parameters())
        if parameters > MOST_PARAMETERS:
            pytest.skip(f"{parameters} parameters: its sizes have names of their own")
        torch.manual_seed(7)
        model = model_class(config).eval()
    except Exception as error:  # configurations check each other's sizes in ways of their own
        pytest.skip(f"needs sizes of its own: {error}")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                middle = 1.0 if bool((parameter == 1).all()) else 0.0
                parameter.uniform_(middle - 0.5, middle + 0.5)
    return model


@torch.inference_mode()
def logits_of(model: transformers.PreTrainedModel) -> torch.Tensor:
    return torch.cat([model(torch.tensor([ids]), use_cache=False).logits[0] for ids in PROMPTS])


@pytest.mark.parametrize("model_type", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_its_own_logits_or_a_refusal(model_type: str, tmp_path: Path, paged_run: Any) -> None:
    """The bound grows with what a change of 1e-7 in the embedding does to the logits: a few models are chaotic."""
    model = tiny_model(model_type)
    model.save_pretrained(tmp_path)
    try:
        loaded = load_model(tmp_path)
    except ModelLoadError as error:
        pytest.skip(f"refused: {str(error).partition('; supported: ')[0]}")
    model.set_attn_implementation("eager")
    expected = logits_of(model)
    assert expected.std() > 0.01
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        embedding.mul_(1 + 1e-7 * torch.randn(embedding.shape, dtype=torch.float64))
    noise = float((logits_of(model) - expected).abs().max())
    actual = torch.cat(paged_run(loaded, PROMPTS, 5).in_chunks(MIXED))
    assert (actual - expected).abs().max() < max(1e-4, 20 * noise)
