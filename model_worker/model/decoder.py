"""The native forward pass on the paged pool: one decoder, whose family says what it adds to Llama."""

import torch

from kernels import DecoderEnds, Quantization, RaggedBatch, decoder_logits
from model_worker.model.decoder_config import DecoderConfig
from model_worker.model.decoder_weights import DecoderWeights, ReadTensor
from model_worker.model.rope import RotationTable, inverse_frequencies


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
        self._rotations = [
            RotationTable(inverse_frequencies(rope, config.head_dim).to(device), rope.magnitude)
            for rope in config.ropes
        ]
        # The checkpoint's authors multiplied in the model's dtype, so the factor is rounded to it as well.
        factor = torch.tensor(config.hidden_size**0.5, dtype=dtype).item() if config.family.scaled_embeddings else 1.0
        weights = DecoderWeights.read(config, read, dtype, device, quantization)
        self._stack = weights.stack
        self._ends = DecoderEnds(weights.embedding, weights.norm, weights.output, factor)

    @property
    def capturable(self) -> bool:
        """Which experts have tokens, and how many, is read on the host."""
        return self.config.experts is None

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: RaggedBatch,
        pool: torch.Tensor,
        logits_at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One step: writes the K and V of its tokens into the pool and returns logits.

        token_ids, positions, slots  int64 [tokens], in the order of the batch
        batch      the sequences the tokens belong to
        pool       [num_blocks + 1, num_layers, 2, kv_heads, block_size, head_dim], in the model's dtype
        logits_at  int64 [rows], the tokens of the step whose logits are wanted; None for all
        returns    float32 [rows, vocab]
        """
        longest = max(batch.host_context_lengths, default=0)
        rotations = [table.rows(longest) for table in self._rotations]
        logits = decoder_logits(self._ends, self._stack, token_ids, positions, rotations, slots, batch, pool, logits_at)
        if (cap := self.config.logits_cap) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits
