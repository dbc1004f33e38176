"""GGUF files as checkpoints: metadata becomes config.json, tensors get their Hugging Face names and layout."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from model_worker.model.checkpoint import sample_range
from model_worker.model.errors import CheckpointError, UnsupportedModelError
from model_worker.model.gguf_rope import llama3_scaling

ARCHITECTURES = {"llama": "LlamaForCausalLM"}

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"


class GgufCheckpoint:
    """One GGUF file. Tensors are dequantised to float32 when read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise CheckpointError(f"{path} is neither a model folder nor a GGUF file")
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
        if int(self.metadata("split.count", 1)) > 1:
            raise UnsupportedModelError(f"{path} is one part of a split GGUF; join the parts first")
        architecture = self.metadata("general.architecture")
        if architecture not in ARCHITECTURES:
            supported = ", ".join(ARCHITECTURES)
            raise UnsupportedModelError(f"GGUF architecture {architecture!r} is not supported; supported: {supported}")
        self._architecture = str(architecture)
        self._stored = {tensor.name: tensor for tensor in self._reader.tensors}
        self._tensors = {_hf_name(name): tensor for name, tensor in self._stored.items() if name != _ROPE_FACTORS}

    def __enter__(self) -> "GgufCheckpoint":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close: the reader maps the file, and the map ends with the last tensor that looks into it."""

    def metadata(self, key: str, default: Any = None) -> Any:
        """A metadata value by its full key."""
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def config(self) -> dict[str, Any]:
        """What config.json would say. Raises CheckpointError when a key is missing."""
        hidden_size, heads = self._required("embedding_length"), self._required("attention.head_count")
        context, head_dim = (
            self._required("context_length"),
            self._optional("attention.key_length", hidden_size // heads),
        )
        rotary = self._optional("rope.dimension_count", head_dim)
        if rotary != head_dim:
            raise UnsupportedModelError(f"{rotary} rotary dimensions of {head_dim} are not supported; supported: all")
        theta = _shortest(self._optional("rope.freq_base", 10000.0))
        return {
            "architectures": [ARCHITECTURES[self._architecture]],
            "model_type": "llama",
            "hidden_size": hidden_size,
            "num_hidden_layers": self._required("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._optional("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "intermediate_size": self._required("feed_forward_length"),
            "vocab_size": int(self._tensor("model.embed_tokens.weight").shape[-1]),
            "max_position_embeddings": context,
            "rms_norm_eps": _shortest(self._required("attention.layer_norm_rms_epsilon")),
            "rope_theta": theta,
            "rope_scaling": self._rope_scaling(theta, head_dim),
            "hidden_act": "silu",
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._tensors,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self._tensors,
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            **self.generation_config(),
        }

    def generation_config(self) -> dict[str, Any]:
        names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
        ids = {name: self.metadata(f"tokenizer.ggml.{key}_token_id") for key, name in names.items()}
        return {name: token for name, token in ids.items() if token is not None}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: _shape(tensor) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        tensor = self._tensor(name)
        weights = torch.from_numpy(_dequantised(tensor))
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            return _unpermuted(weights, self._required("attention.head_count"))
        if name.endswith(("k_proj.weight", "k_proj.bias")):
            heads = self._required("attention.head_count")
            return _unpermuted(weights, self._optional("attention.head_count_kv", heads))
        return weights

    def identity(self) -> Iterator[bytes]:
        yield str(self._path.stat().st_size).encode()
        with self._path.open("rb") as file:
            yield file.read(self._reader.data_offset)
            for tensor in sorted(self._reader.tensors, key=lambda tensor: str(tensor.name)):
                first, end = sample_range(tensor.data_offset, tensor.data_offset + tensor.n_bytes)
                file.seek(first)
                yield file.read(end - first)

    def _required(self, key: str) -> Any:
        value = self._optional(key, None)
        if value is None:
            raise CheckpointError(f"{self._path} has no metadata {self._architecture}.{key}")
        return value

    def _optional(self, key: str, default: Any) -> Any:
        return self.metadata(f"{self._architecture}.{key}", default)

    def _tensor(self, name: str) -> Any:
        if name not in self._tensors:
            raise CheckpointError(f"{self._path} has no tensor for {name}")
        return self._tensors[name]

    def _rope_scaling(self, theta: float, head_dim: int) -> dict[str, Any] | None:
        if _ROPE_FACTORS in self._stored:
            return llama3_scaling(torch.from_numpy(_dequantised(self._stored[_ROPE_FACTORS])), theta, head_dim)
        kind = self._optional("rope.scaling.type", "none")
        if kind == "none":
            return None
        if kind != "linear":
            raise UnsupportedModelError(f"GGUF rope scaling {kind!r} is not supported; supported: none, linear, llama3")
        return {"rope_type": "linear", "factor": _shortest(self._required("rope.scaling.factor"))}


def _hf_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    kind, _, rest = name.partition(".")
    index, _, part = rest.partition(".")
    module, _, leaf = part.rpartition(".")
    if kind == "blk" and module in _LAYER_NAMES:
        return f"model.layers.{index}.{_LAYER_NAMES[module]}.{leaf}"
    return name


def _shape(tensor: Any) -> tuple[int, ...]:
    """GGUF lists the fastest dimension first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _dequantised(tensor: Any) -> np.ndarray:
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise UnsupportedModelError(f"tensor {tensor.name} is quantised as {kind}, which is not supported") from error
    return np.array(values, dtype=np.float32).reshape(_shape(tensor))


def _unpermuted(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q and k in the half-split rotary order: GGUF stores them as interleaved pairs.

    A head's rows (0 0' 1 1' 2 2') become (0 1 2 0' 1' 2').
    """
    pairs = weights.reshape(heads, -1, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def _shortest(value: float) -> float:
    """The number a float32 was written for: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))
