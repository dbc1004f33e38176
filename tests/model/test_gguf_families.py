"""GGUF files of every architecture and quantisation, written here with gguf's own writer, names and quants.

The metadata and the changes to tensors are those of the public converter: 1 is added to Gemma's norms, Llama's q and k
are permuted, LongRoPE's divisors are tensors.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import tiny_checkpoint

from model_worker.model import LoadedModel, UnsupportedModelError, load_model
from model_worker.model.loader import open_checkpoint

pytestmark = pytest.mark.model

ARCHITECTURES = {
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "llama": gguf.MODEL_ARCH.LLAMA,
}
IDS = [(7 * index) % 190 + 3 for index in range(40)]
# What GGUF files of an architecture say by their name alone: which layers have the window, and Gemma's scale.
CHANGES: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False, "sliding_window": None},
    "gemma2": {"query_pre_attn_scalar": 32, "layer_types": None},
    "gemma3": {
        "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        "num_hidden_layers": 7,
    },
}

Store = Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType]]
"""(name, weights) -> (bytes, type)"""


def as_float32(name: str, weights: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    return weights, gguf.GGMLQuantizationType.F32


def write_gguf(family: str, folder: Path, path: Path, store: Store = as_float32) -> Path:
    """The checkpoint in `folder` as a GGUF file. Norms and biases stay in float32."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    write_metadata(writer, family, config)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, leaf = name.rsplit(".", 1)
        weights = tensor.float().numpy()
        if family.startswith("gemma") and name.endswith("norm.weight"):
            weights = weights + 1
        if family == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if module.endswith("q_proj") else "num_key_value_heads"]
            halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
            weights = halves.swapaxes(1, 2).reshape(weights.shape)
        stored, kind = store(name, weights) if weights.ndim == 2 else as_float32(name, weights)
        writer.add_tensor(f"{names.get_name(module)}.{leaf}", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_metadata(writer: gguf.GGUFWriter, family: str, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if family == "phi3":
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], dtype=np.float32))
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def logits(loaded: LoadedModel, paged_run: Any) -> torch.Tensor:
    rows: torch.Tensor = paged_run(loaded, [IDS], 16).step({0: len(IDS)})[0]
    return rows


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_gguf_is_the_model_it_was_written_from(family: str, tmp_path: Path, paged_run: Any) -> None:
    """All of config.json that the forward pass reads comes back, and every weight; 1e-6 is float32's rounding of
    Gemma's norms, which are stored with 1 added."""
    folder = tiny_checkpoint(family, tmp_path / "folder", **CHANGES.get(family, {}))
    path = write_gguf(family, folder, tmp_path / "tiny.gguf")
    from_folder, from_gguf = load_model(folder), load_model(path)
    assert from_gguf.config.ropes == from_folder.config.ropes
    assert from_gguf.config.windows == from_folder.config.windows
    with open_checkpoint(path) as checkpoint:
        for name, expected in load_file(folder / "model.safetensors").items():
            assert torch.allclose(checkpoint.read(name), expected, atol=1e-6), name
    assert torch.allclose(logits(from_gguf, paged_run), logits(from_folder, paged_run), atol=1e-4)


def test_yarn_survives_the_file(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    folder = tiny_checkpoint("qwen3", tmp_path / "folder", rope_parameters=yarn)
    path = write_gguf("qwen3", folder, tmp_path / "tiny.gguf")
    assert load_model(path).config.ropes == load_model(folder).config.ropes


K_BLOCKS = {"Q4_K": (144, (0, 2)), "Q5_K": (176, (0, 2)), "Q6_K": (210, (208,))}
"""Bytes of a block of 256 weights, and where its float16 scales lie; all other bytes are free."""


def k_quantised(kind: str) -> Store:
    """Random blocks: gguf reads K quants and does not write them."""
    size, scales = K_BLOCKS[kind]

    def store(name: str, weights: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        draw = np.random.default_rng(sum(map(ord, name)))
        blocks = draw.integers(0, 256, (weights.size // 256, size), dtype=np.uint8)
        for offset in scales:
            small = draw.uniform(2e-4, 1e-3, len(blocks)).astype(np.float16)
            blocks[:, offset : offset + 2] = small.view(np.uint8).reshape(-1, 2)
        return blocks.reshape(weights.shape[0], -1), gguf.GGMLQuantizationType[kind]

    return store


def plainly_quantised(kind: str) -> Store:
    stored = gguf.GGMLQuantizationType[kind]
    return lambda name, weights: (gguf.quants.quantize(weights, stored), stored)


@pytest.mark.parametrize("kind", [*K_BLOCKS, "Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_every_quantisation_gives_the_logits_of_its_weights(kind: str, tmp_path: Path, paged_run: Any) -> None:
    """Beside a folder that holds the weights as gguf's own quants read them. Rows are whole blocks of 256."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    folder = tiny_checkpoint("qwen3", tmp_path / "folder", **sizes, **heads)
    store = k_quantised(kind) if kind in K_BLOCKS else plainly_quantised(kind)
    path = write_gguf("qwen3", folder, tmp_path / "tiny.gguf", store)
    rounded = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        rounded[name] = tensor
        if tensor.dim() == 2:
            values = gguf.quants.dequantize(*store(name, tensor.numpy()))
            rounded[name] = torch.from_numpy(np.array(values, dtype=np.float32).reshape(tensor.shape))
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    actual, expected = logits(load_model(path), paged_run), logits(load_model(folder), paged_run)
    assert expected.std() > 0.01
    assert torch.equal(actual, expected)


def test_experts_in_a_gguf_are_refused(tmp_path: Path) -> None:
    experts = gguf.GGUFWriter(tmp_path / "experts.gguf", "qwen3")
    experts.add_expert_count(4)
    experts.write_header_to_file()
    experts.write_kv_data_to_file()
    experts.write_tensors_to_file()
    experts.close()
    with pytest.raises(UnsupportedModelError, match="experts in a GGUF file are not supported"):
        load_model(tmp_path / "experts.gguf")
