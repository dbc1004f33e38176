"""The native forward pass on the paged pool: one decoder, whose family says what it adds to Llama."""

import torch

from kernels import Quantization, RaggedBatch, add_rms_norm, decoder_layers, embedding, linear
from model_worker.model.decoder_config import DecoderConfig
from model_worker.model.decoder_weights import DecoderWeights, ReadTensor
from model_worker.model.rope import inverse_frequencies, rotation_at


class DecoderModel:
    """A decoder with its weights in one dtype on one device. The KV pool belongs to the caller."""

    def __init__(
        self,
        config: DecoderConfig,
        read: ReadTensor,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization | None = None,
    ) -> None:
        """Reads every tensor of `tensor_shapes(config)` once, by name, in the order of the layers."""
        self.config = config
        self.dtype = dtype
        self.device = device
        self._weights = DecoderWeights.read(config, read, dtype, device, quantization)
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
        config, weights, epsilon = self.config, self._weights, self.config.rms_eps
        rotations = [
            rotation_at(positions, frequencies, rope.magnitude)
            for frequencies, rope in zip(self._frequencies, config.ropes, strict=True)
        ]
        hidden = embedding(token_ids, weights.embedding, weights.activations)
        if self._embedding_factor is not None:
            hidden = hidden * self._embedding_factor
        delta = decoder_layers(weights.stack, hidden, rotations, slots, batch, pool)
        last = add_rms_norm(hidden.index_select(0, logits_at), delta.index_select(0, logits_at), weights.norm, epsilon)
        logits = linear(last, weights.output, torch.float32)
        if config.logits_cap is not None:
            logits = torch.tanh(logits / config.logits_cap) * config.logits_cap
        return logits
