"""The native forward pass on the paged pool: one decoder, whose family says what it adds to Llama."""

import torch

from kernels import (
    RaggedBatch,
    add_rms_norm,
    embedding,
    linear,
    paged_attention,
    write_rotated_kv,
)
from model_worker.model.decoder_config import DecoderConfig
from model_worker.model.decoder_weights import DecoderWeights, ReadTensor
from model_worker.model.rope import inverse_frequencies, rotation_at


class DecoderModel:
    """A decoder with its weights in one dtype on one device. The KV pool belongs to the caller."""

    def __init__(self, config: DecoderConfig, read: ReadTensor, dtype: torch.dtype, device: torch.device) -> None:
        """Reads every tensor of `tensor_shapes(config)` once, by name, in the order of the layers."""
        self.config = config
        self.dtype = dtype
        self.device = device
        self._weights = DecoderWeights.read(config, read, dtype, device)
        self._frequencies = [inverse_frequencies(rope, config.head_dim).to(device) for rope in config.ropes]
        # The checkpoint's authors multiplied in the model's dtype, so the factor is rounded to it as well.
        factor = torch.tensor(config.hidden_size**0.5, dtype=dtype).item()
        self._embedding_factor = factor if config.family.scaled_embeddings else None

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
        config, weights = self.config, self._weights
        tokens, heads, epsilon = token_ids.shape[0], config.num_heads, config.rms_eps
        keys_end = heads + config.num_kv_heads
        rotations = [
            rotation_at(positions, frequencies, rope.magnitude)
            for frequencies, rope in zip(self._frequencies, config.ropes, strict=True)
        ]
        hidden = embedding(token_ids, weights.embedding)
        if self._embedding_factor is not None:
            hidden = hidden * self._embedding_factor
        # Each product is added to the hidden state by the norm that reads it next.
        delta: torch.Tensor | None = None
        for index, layer in enumerate(weights.layers):
            normed = add_rms_norm(hidden, delta, layer.attention_norm, epsilon)
            qkv = linear(normed, layer.qkv).view(tokens, -1, config.head_dim)
            query, key, value = qkv[:, :heads], qkv[:, heads:keys_end], qkv[:, keys_end:]
            if layer.query_norm is not None and layer.key_norm is not None:
                query, key = _head_norm(query, layer.query_norm, epsilon), _head_norm(key, layer.key_norm, epsilon)
            cosine, sine = rotations[config.layer_ropes[index]]
            write_rotated_kv(pool, index, query, key, value, slots, cosine, sine)
            attended = paged_attention(
                query,
                pool,
                index,
                batch,
                scale=config.scale,
                window=config.windows[index],
                soft_cap=config.attention_cap,
            )
            delta = linear(attended.view(tokens, -1), layer.attention_out)
            if layer.after_attention_norm is not None:
                delta = add_rms_norm(delta, None, layer.after_attention_norm, epsilon)
            normed = add_rms_norm(hidden, delta, layer.ffn_norm, epsilon)
            delta = layer.ffn(normed)
            if layer.after_ffn_norm is not None:
                delta = add_rms_norm(delta, None, layer.after_ffn_norm, epsilon)
        assert delta is not None
        last = add_rms_norm(hidden.index_select(0, logits_at), delta.index_select(0, logits_at), weights.norm, epsilon)
        logits = linear(last, weights.output).float()
        if config.logits_cap is not None:
            logits = torch.tanh(logits / config.logits_cap) * config.logits_cap
        return logits


def _head_norm(heads: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Every head normed by itself: [tokens, heads, head_dim], weight [head_dim]."""
    return add_rms_norm(heads.reshape(-1, heads.shape[-1]), None, weight, epsilon).view(heads.shape)
