"""What is not run, and why: each kind by name, before its weights are read where the configuration tells."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_checkpoints import tiny_checkpoint
from transformers import masking_utils

from model_worker.model import CheckpointError, UnsupportedModelError, load_model, read_config
from model_worker.model.general_masks import MaskError, window_of

pytestmark = pytest.mark.model

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def configuration(name: str, architecture: str, folder: Path, **settings: Any) -> Path:
    """A folder with a configuration and empty weights: nothing may get as far as to read them."""
    config = getattr(transformers, name)(**settings)
    config.architectures = [architecture]
    config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def written(folder: Path, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


NO_INTERFACE = "does not call its attention through the attention interface"
NO_POSITIONS = "takes no position_ids"


@pytest.mark.parametrize(
    ("config", "architecture", "settings", "reason"),
    [
        ("FalconConfig", "FalconForCausalLM", SMALL, NO_INTERFACE),
        ("BloomConfig", "BloomForCausalLM", SMALL, NO_POSITIONS),
        ("MptConfig", "MptForCausalLM", {"d_model": 48, "n_heads": 3, "n_layers": 2, "vocab_size": 99}, NO_POSITIONS),
        (
            "GPTNeoConfig",
            "GPTNeoForCausalLM",
            {**SMALL, "num_layers": 2, "num_heads": 3, "attention_types": [[["global", "local"], 1]]},
            NO_INTERFACE,
        ),
        ("T5Config", "T5ForConditionalGeneration", {"d_model": 48}, "is an encoder-decoder"),
        ("DeepseekV3Config", "DeepseekV3ForCausalLM", {}, r"keeps latents instead of keys and values \(MLA\)"),
        ("Llama4TextConfig", "Llama4ForCausalLM", {}, "attends in chunks"),
        (
            "Gemma3Config",
            "Gemma3ForConditionalGeneration",
            {},
            r"takes more than text \(vision_config in config.json\)",
        ),
        ("LlavaConfig", "LlavaForConditionalGeneration", {}, "takes more than text"),
        ("GPT2Config", "GPT2Model", {}, "is no language model of transformers"),
    ],
)
def test_kinds_are_refused_by_their_configuration(
    config: str, architecture: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = configuration(config, architecture, tmp_path, **settings)
    with pytest.raises(UnsupportedModelError, match=rf"^{architecture} {reason}.*; supported: LlamaForCausalLM, .*"):
        read_config(folder)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "awq"}},
            "LlamaForCausalLM is quantised by awq, which is not read",
        ),
        (
            {"architectures": ["NewForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling_new.NewForCausalLM"}},
            "NewForCausalLM needs code of its own, which is not run",
        ),
        ({"architectures": ["NewForCausalLM"]}, r"NewForCausalLM is not known to transformers \d"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True},
            "Gemma3ForCausalLM attends in both directions",
        ),
    ],
)
def test_what_a_config_says_is_refused(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        read_config(written(tmp_path, **values))


def saved(name: str, architecture: str, folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    getattr(transformers, architecture)(getattr(transformers, name)(**settings)).save_pretrained(folder)
    return folder


HYBRID = {
    "initializer_range": 0.2,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 3,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "num_key_value_heads": 3,
}


@pytest.mark.parametrize(
    ("config", "architecture", "settings", "reason"),
    [
        # Positions start behind the padding id, so those of the pool would be off by 2.
        ("RobertaConfig", "RobertaForCausalLM", {"is_decoder": True}, "computes other logits when .* set from outside"),
        ("FalconH1Config", "FalconH1ForCausalLM", HYBRID, "lets tokens see each other outside of attention"),
        (
            "DiffLlamaConfig",
            "DiffLlamaForCausalLM",
            {"num_attention_heads": 4},
            "calls its attention 4 times in 2 layers",
        ),
    ],
)
def test_the_loaded_model_tells_the_rest(
    config: str, architecture: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = saved(config, architecture, tmp_path, **{**SMALL, **settings})
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(UnsupportedModelError, match=rf"^{architecture} {reason}"):
            load_model(folder, dtype)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    folder = tiny_checkpoint("gpt2", tmp_path)
    weights = load_file(folder / "model.safetensors")
    removed = next(name for name in weights if name.endswith("mlp.c_fc.weight"))
    del weights[removed]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"missing or misshapen .*{removed.removeprefix('transformer.')}"):
        load_model(folder)


def test_masks_are_read_off_their_functions() -> None:
    """A window of 5 is the query and 4 tokens before it."""
    assert window_of(masking_utils.causal_mask_function) is None
    for window in (1, 5, 4096):
        assert window_of(masking_utils.sliding_window_causal_mask_function(window)) == window


@pytest.mark.parametrize(
    "mask",
    [
        masking_utils.bidirectional_mask_function,
        masking_utils.chunked_causal_mask_function(8192, torch.zeros(1, dtype=torch.int64)),
        masking_utils.or_masks(
            masking_utils.sliding_window_causal_mask_function(9), lambda batch, head, query, key: key < 2
        ),
        masking_utils.and_masks(
            masking_utils.causal_mask_function, masking_utils.packed_sequence_mask_function(torch.zeros(1, 4))
        ),
        lambda batch, head, query, key: key < 0,
    ],
)
def test_other_masks_are_told_apart(mask: Any) -> None:
    with pytest.raises(MaskError):
        window_of(mask)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_head": None}, r"transformers cannot read .*: .*Validation.*'n_head'.*expected int, got NoneType"),
        ({"dtype": "float31"}, r"transformers cannot read .*: AttributeError: .*'float31'"),
        ({"activation_function": "elephant"}, "config.json makes no GPT2LMHeadModel: KeyError: 'elephant'"),
        ({"n_embd": 0}, "config.json makes no GPT2LMHeadModel: ZeroDivisionError: "),
    ],
)
def test_what_makes_no_sense_to_transformers_is_one_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = configuration("GPT2Config", "GPT2LMHeadModel", tmp_path, n_layer=1, n_embd=48, n_head=3, vocab_size=99)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(folder)
    assert len(str(caught.value).splitlines()) == 1
