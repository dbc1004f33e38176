"""The Llama family's forward pass on the paged pool, with fused projections."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels import (
    PackedLinear,
    RaggedBatch,
    add_rms_norm,
    embedding,
    linear,
    pack_gated_linear,
    pack_linear,
    paged_attention,
    write_rotated_kv,
)
from model_worker.model.config import ModelConfig
from model_worker.model.rope import inverse_frequencies, rotation_at

ReadTensor = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Weights of one layer."""

    attention_norm: torch.Tensor
    qkv: PackedLinear
    """[(heads + 2 * kv_heads) * head_dim, hidden]: rows of q, then k, then v."""
    attention_out: PackedLinear
    ffn_norm: torch.Tensor
    gate_up: PackedLinear
    """Gated, [ffn, hidden] each."""
    down: PackedLinear


class LlamaModel:
    """A Llama with its weights in one dtype on one device. The KV pool belongs to the caller."""

    def __init__(self, config: ModelConfig, read: ReadTensor, dtype: torch.dtype, device: torch.device) -> None:
        """Reads every tensor of `tensor_shapes(config)` once, by name, in the order of the layers."""
        self.config = config
        self.dtype = dtype
        self.device = device

        def load(*names: str) -> torch.Tensor:
            return _stacked(read, names, dtype, device)

        def load_bias(present: bool, *names: str) -> torch.Tensor | None:
            return load(*names) if present else None

        embedding_table = pack_linear(load("model.embed_tokens.weight"))
        self._layers = []
        for index in range(config.num_layers):
            attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
            qkv = [f"{attention}.{part}_proj" for part in "qkv"]
            gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
            layer = LlamaLayer(
                attention_norm=load(f"model.layers.{index}.input_layernorm.weight"),
                qkv=pack_linear(
                    load(*(f"{name}.weight" for name in qkv)),
                    load_bias(config.attention_bias, *(f"{name}.bias" for name in qkv)),
                ),
                attention_out=pack_linear(
                    load(f"{attention}.o_proj.weight"), load_bias(config.attention_bias, f"{attention}.o_proj.bias")
                ),
                ffn_norm=load(f"model.layers.{index}.post_attention_layernorm.weight"),
                gate_up=pack_gated_linear(
                    load(*(f"{name}.weight" for name in gate_up)),
                    load_bias(config.mlp_bias, *(f"{name}.bias" for name in gate_up)),
                ),
                down=pack_linear(load(f"{mlp}.down_proj.weight"), load_bias(config.mlp_bias, f"{mlp}.down_proj.bias")),
            )
            self._layers.append(layer)
        self._norm = load("model.norm.weight")
        self._embedding = embedding_table
        self._output = embedding_table if config.tied_embeddings else pack_linear(load("lm_head.weight"))
        self._frequencies = inverse_frequencies(config.rope, config.head_dim).to(device)

    @staticmethod
    def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Every tensor of a checkpoint of this family, by its Hugging Face name."""
        hidden, ffn = config.hidden_size, config.ffn_size
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        matrices = {
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
        for index in range(config.num_layers):
            prefix = f"model.layers.{index}"
            for name, shape in matrices.items():
                shapes[f"{prefix}.{name}.weight"] = shape
                if config.attention_bias if name.startswith("self_attn") else config.mlp_bias:
                    shapes[f"{prefix}.{name}.bias"] = shape[:1]
            shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
            shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        shapes["model.norm.weight"] = (hidden,)
        if not config.tied_embeddings:
            shapes["lm_head.weight"] = (config.vocab_size, hidden)
        return shapes

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: RaggedBatch,
        pool: torch.Tensor,
        logits_at: torch.Tensor,
    ) -> torch.Tensor:
        """One step: writes the K and V of its tokens into the pool and returns logits.

        token_ids, positions, slots  int64 [tokens], in the order of the batch
        batch      the sequences the tokens belong to
        pool       [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim], in the model's dtype
        logits_at  int64 [rows], the tokens of the step whose logits are wanted
        returns    float32 [rows, vocab]
        """
        config = self.config
        tokens, heads, scale, epsilon = token_ids.shape[0], config.num_heads, config.head_dim**-0.5, config.rms_eps
        keys_end = heads + config.num_kv_heads
        cosine, sine = rotation_at(positions, self._frequencies)
        hidden = embedding(token_ids, self._embedding)
        # Each product is added to the hidden state by the norm that reads it next.
        delta: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            normed = add_rms_norm(hidden, delta, layer.attention_norm, epsilon)
            qkv = linear(normed, layer.qkv).view(tokens, -1, config.head_dim)
            query, key, value = qkv[:, :heads], qkv[:, heads:keys_end], qkv[:, keys_end:]
            write_rotated_kv(pool, index, query, key, value, slots, cosine, sine)
            attended = paged_attention(query, pool, index, batch, scale=scale)
            delta = linear(attended.view(tokens, -1), layer.attention_out)
            normed = add_rms_norm(hidden, delta, layer.ffn_norm, epsilon)
            delta = linear(linear(normed, layer.gate_up), layer.down)
        assert delta is not None
        last = add_rms_norm(hidden.index_select(0, logits_at), delta.index_select(0, logits_at), self._norm, epsilon)
        return linear(last, self._output).float()


def _stacked(read: ReadTensor, names: Sequence[str], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The named tensors one above the other."""
    parts = [read(name).to(device=device, dtype=dtype) for name in names]
    return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
