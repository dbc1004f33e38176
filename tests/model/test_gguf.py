"""GGUF files, written here from a tiny Llama with gguf's own writer, against the same Llama in safetensors."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from model_worker.model import CheckpointError, UnsupportedModelError, convert_gguf, load_model
from model_worker.model.loader import open_checkpoint

pytestmark = pytest.mark.model

HEADS, KV_HEADS, VOCAB = 6, 2, 272
IDS = [5, 250, 17, 17, 99, 3, 200]
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    module, leaf = name.rsplit(".", 1)
    if module in GGUF_NAMES:
        return f"{GGUF_NAMES[module]}.{leaf}"
    _, _, index, part = module.split(".", 3)
    return f"blk.{index}.{GGUF_NAMES[part]}.{leaf}"


def interleaved(weights: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head's first half goes to 2 i, row i of its second half to 2 i + 1."""
    by_head = weights.reshape(heads, -1, weights.shape[-1])
    half = by_head.shape[1] // 2
    output = np.empty_like(by_head)
    output[:, 0::2], output[:, 1::2] = by_head[:, :half], by_head[:, half:]
    return output.reshape(weights.shape)


def write_gguf(folder: Path, path: Path, kind: gguf.GGMLQuantizationType, **metadata: Any) -> Path:
    """The model in `folder` as a GGUF file with matrices stored as `kind`, norms in float32."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config["rope_parameters"]["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_parameters"]["factor"])
    write_tokenizer(writer, **metadata)
    for name, tensor in load_file(folder / "model.safetensors").items():
        weights = tensor.float().numpy()
        if name.endswith("q_proj.weight"):
            weights = interleaved(weights, HEADS)
        elif name.endswith("k_proj.weight"):
            weights = interleaved(weights, KV_HEADS)
        stored = gguf.GGMLQuantizationType.F32 if weights.ndim == 1 else kind
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(weights, stored), raw_dtype=stored)
    if "rope_divisors" in metadata:
        writer.add_tensor("rope_freqs.weight", metadata["rope_divisors"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokenizer(writer: gguf.GGUFWriter, pre: str = "smollm", add_bos: bool = False, **_: Any) -> None:
    """Two special tokens, one added by a user, the 256 bytes, and 13 merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["Ġ Ġ", "t h", "th e", "Ġ the", "i n", "a n", "e r", "r e", "o n", "s t", "o r", "an d", "Ġ and"]
    tokens = ["<s>", "</s>", "<user>", *alphabet, *[merge.replace(" ", "") for merge in merges]]
    assert len(tokens) == VOCAB
    types = [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.USER_DEFINED] + [gguf.TokenType.NORMAL] * (VOCAB - 3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template("{{ messages[0]['content'] }}")


@pytest.fixture
def llama(make_llama: Any) -> Path:
    path: Path = make_llama(vocab_size=VOCAB)
    return path


def logits(path: Path, paged_run: Any) -> torch.Tensor:
    rows: torch.Tensor = paged_run(load_model(path), [IDS], 4).step({0: len(IDS)})[0]
    return rows


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_a_gguf_gives_the_logits_of_its_weights(kind: str, llama: Path, tmp_path: Path, paged_run: Any) -> None:
    """Compared with a folder whose weights went through the same rounding, before any permutation."""
    stored = gguf.GGMLQuantizationType[kind]
    path = write_gguf(llama, tmp_path / "tiny.gguf", stored)
    loaded = load_model(path)
    rounded = {}
    for name, tensor in load_file(llama / "model.safetensors").items():
        weights = tensor.numpy()
        if weights.ndim == 2:
            weights = gguf.quants.dequantize(gguf.quants.quantize(weights, stored), stored).reshape(weights.shape)
        rounded[name] = torch.from_numpy(np.array(weights, dtype=np.float32))
    with open_checkpoint(path) as checkpoint:
        for name, expected in rounded.items():
            assert torch.equal(checkpoint.read(name), expected), name
    if kind == "F32":
        assert torch.allclose(logits(path, paged_run), logits(llama, paged_run), atol=1e-5)
    assert loaded.config.eos_token_ids == (1,)
    assert loaded.config.rms_eps == 1e-5


def test_rows_left_permuted_would_show(llama: Path, tmp_path: Path, paged_run: Any, monkeypatch: Any) -> None:
    path = write_gguf(llama, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.F32)
    monkeypatch.setattr("model_worker.model.gguf_file._unpermuted", lambda weights, heads: weights)
    assert not torch.allclose(logits(path, paged_run), logits(llama, paged_run), atol=1e-2)


@pytest.mark.parametrize("shard_bytes", [2**30, 2**17])
@pytest.mark.parametrize("tied", [False, True])
def test_a_converted_folder_gives_the_same_logits(
    tied: bool, shard_bytes: int, make_llama: Any, tmp_path: Path, paged_run: Any
) -> None:
    """About 0.9 MB of weights: one file, or shards of 128 KiB with an index."""
    source = make_llama(vocab_size=VOCAB, tie_word_embeddings=tied)
    path = write_gguf(source, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0)
    folder = tmp_path / "converted"
    seen: list[tuple[int, int]] = []
    convert_gguf(path, folder, lambda done, total: seen.append((done, total)), shard_bytes=shard_bytes)
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    assert (files == ["model.safetensors"]) == (shard_bytes == 2**30)
    # Whoever may read the configuration may read the weights.
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1
    stored = [name for file in files for name in load_file(folder / file)]
    assert ("lm_head.weight" in stored) == (not tied)
    assert load_model(folder).config == load_model(path).config
    assert torch.equal(logits(folder, paged_run), logits(path, paged_run))
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("rope", ["linear", "llama3"])
def test_rope_scaling_survives_the_file(rope: str, make_llama: Any, tmp_path: Path, paged_run: Any) -> None:
    """A GGUF holds Llama 3's scaling as a divisor for each frequency: 1 for short waves up to 8 for long ones."""
    parameters: dict[str, Any] = {"rope_type": rope, "rope_theta": 500000.0, "factor": 8.0}
    metadata = {}
    if rope == "llama3":
        scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        parameters |= scaling
        metadata["rope_divisors"] = llama3_divisors(500000.0, 64, 8.0, 1.0, 4.0, 8192)
    source = make_llama(vocab_size=VOCAB, rope_parameters=parameters)
    path = write_gguf(source, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.F32, **metadata)
    assert load_model(path).config.ropes == load_model(source).config.ropes
    assert torch.allclose(logits(path, paged_run), logits(source, paged_run), atol=1e-5)


def llama3_divisors(theta: float, head_dim: int, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """As the public converter writes them: frequency by frequency, by wavelength."""
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (i / head_dim)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


def test_unknown_rope_divisors_are_refused(llama: Path, tmp_path: Path) -> None:
    divisors = np.linspace(1, 5, 32, dtype=np.float32)
    path = write_gguf(llama, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.F32, rope_divisors=divisors)
    with pytest.raises(UnsupportedModelError, match="rope_freqs"):
        load_model(path)


def test_tokenizer_files(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    convert_gguf(write_gguf(llama, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    for text in ("the sand  and 2018 \n\t x", "日本語 🦀 naïve", "</s>the<user>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(" the </s><user>42")) == [
        *("Ġthe", "Ġ", "</s>", "<user>", "4", "2")
    ]
    assert tokenizer.decode(tokenizer.encode("a</s>b<user>"), skip_special_tokens=True) == "ab<user>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


def test_bos_is_added_only_when_the_file_says_so(llama: Path, tmp_path: Path) -> None:
    for add_bos in (False, True):
        folder = tmp_path / f"converted-{add_bos}"
        path = write_gguf(llama, tmp_path / f"{add_bos}.gguf", gguf.GGMLQuantizationType.Q8_0, add_bos=add_bos)
        convert_gguf(path, folder)
        assert (AutoTokenizer.from_pretrained(folder).encode("the")[0] == 0) == add_bos


def test_a_failed_conversion_leaves_what_was_there(llama: Path, tmp_path: Path) -> None:
    path = write_gguf(llama, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0)
    folder = tmp_path / "models" / "converted"
    convert_gguf(path, folder)
    (folder / "mark").touch()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_gguf(path, folder, interrupt)
    assert (folder / "mark").exists()
    assert [entry.name for entry in folder.parent.iterdir()] == ["converted"]
    convert_gguf(path, folder)
    assert not (folder / "mark").exists()
    assert [entry.name for entry in folder.parent.iterdir()] == ["converted"]


def test_what_is_not_supported_is_named(llama: Path, tmp_path: Path) -> None:
    other = write_gguf(llama, tmp_path / "other.gguf", gguf.GGMLQuantizationType.F32, architecture="falcon")
    with pytest.raises(UnsupportedModelError, match=r"GGUF architecture 'falcon'.*supported: llama"):
        load_model(other)
    pre = write_gguf(llama, tmp_path / "pre.gguf", gguf.GGMLQuantizationType.F32, pre="unheard-of")
    with pytest.raises(UnsupportedModelError, match=r"pre-tokenizer 'unheard-of'.*supported: smollm"):
        convert_gguf(pre, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(other.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"cannot read .*cut\.gguf"):
        load_model(cut)
