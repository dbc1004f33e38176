"""The layers of a decoder, operation by operation."""

from collections.abc import Sequence

import torch

from kernels.backend import operation
from kernels.decoder import DecoderStack, GatedFeedForward
from kernels.ragged import RaggedBatch


def decoder_layers(
    stack: DecoderStack,
    hidden: torch.Tensor,
    rotations: Sequence[tuple[torch.Tensor, torch.Tensor]],
    slots: torch.Tensor,
    batch: RaggedBatch,
    pool: torch.Tensor,
) -> torch.Tensor:
    """`kernels.decoder_layers`, each operation by the backend that serves the device."""
    device = hidden.device.type
    add_rms_norm, linear = operation("add_rms_norm", device), operation("linear", device)
    write_rotated_kv, paged_attention = operation("write_rotated_kv", device), operation("paged_attention", device)
    tokens, heads, epsilon = hidden.shape[0], stack.heads, stack.epsilon
    keys_end, head_dim = heads + pool.shape[3], pool.shape[5]
    delta: torch.Tensor | None = None
    for index, layer in enumerate(stack.layers):
        # Each product is added to the hidden state by the norm that reads it next.
        normed = add_rms_norm(hidden, delta, layer.attention_norm, epsilon)
        qkv = linear(normed, layer.qkv).view(tokens, -1, head_dim)
        query, key, value = qkv[:, :heads], qkv[:, heads:keys_end], qkv[:, keys_end:]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = add_rms_norm(query.reshape(-1, head_dim), None, layer.query_norm, epsilon).view(query.shape)
            key = add_rms_norm(key.reshape(-1, head_dim), None, layer.key_norm, epsilon).view(key.shape)
        write_rotated_kv(pool, index, query, key, value, slots, *rotations[layer.rotation])
        attended = paged_attention(
            query, pool, index, batch, scale=stack.scale, window=layer.window, soft_cap=stack.soft_cap
        )
        delta = linear(attended.view(tokens, -1), layer.attention_out)
        if layer.after_attention_norm is not None:
            delta = add_rms_norm(delta, None, layer.after_attention_norm, epsilon)
        normed = add_rms_norm(hidden, delta, layer.ffn_norm, epsilon)
        ffn = layer.ffn
        delta = linear(linear(normed, ffn.gate_up), ffn.down) if isinstance(ffn, GatedFeedForward) else ffn(normed)
        if layer.after_ffn_norm is not None:
            delta = add_rms_norm(delta, None, layer.after_ffn_norm, epsilon)
    assert delta is not None
    return delta
