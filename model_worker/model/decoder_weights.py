"""A decoder's weights, read from a checkpoint and made ready for the kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels import PackedLinear, pack_gated_linear, pack_linear
from model_worker.model.activations import ACTIVATIONS
from model_worker.model.decoder_config import DecoderConfig
from model_worker.model.decoder_tensors import (
    EMBEDDING,
    FINAL_NORM,
    OUTPUT,
    Experts,
    FeedForward,
    Matrix,
    layer_tensors,
)
from model_worker.model.feed_forward import DenseFeedForward, MixtureOfExperts

ReadTensor = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer. Norms are what the normed values are multiplied with; None where there is none."""

    attention_norm: torch.Tensor
    qkv: PackedLinear
    """[(heads + 2 * kv_heads) * head_dim, hidden]: rows of q, then k, then v."""
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    attention_out: PackedLinear
    after_attention_norm: torch.Tensor | None
    ffn_norm: torch.Tensor
    ffn: DenseFeedForward | MixtureOfExperts
    after_ffn_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: PackedLinear
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    output: PackedLinear
    """The embedding itself when they are tied."""

    @classmethod
    def read(
        cls, config: DecoderConfig, read: ReadTensor, dtype: torch.dtype, device: torch.device
    ) -> "DecoderWeights":
        """Reads every tensor of `tensor_shapes(config)` once, in the order of the layers."""
        reader = _Reader(config, read, dtype, device)
        table = pack_linear(reader.stacked([EMBEDDING]))
        layers = tuple(reader.layer(index) for index in range(config.num_layers))
        norm = reader.norm(FINAL_NORM)
        return cls(table, layers, norm, table if config.tied_embeddings else pack_linear(reader.stacked([OUTPUT])))


@dataclass(frozen=True, slots=True)
class _Reader:
    config: DecoderConfig
    tensor: ReadTensor
    dtype: torch.dtype
    device: torch.device

    def layer(self, index: int) -> LayerWeights:
        tensors = layer_tensors(self.config, index)
        norms = tensors.norms
        return LayerWeights(
            attention_norm=self.norm(norms.attention),
            qkv=self.packed(tensors.qkv),
            query_norm=self.optional_norm(norms.query),
            key_norm=self.optional_norm(norms.key),
            attention_out=self.packed(tensors.attention_out),
            after_attention_norm=self.optional_norm(norms.after_attention),
            ffn_norm=self.norm(norms.ffn),
            ffn=self.mixture(tensors.ffn) if isinstance(tensors.ffn, Experts) else self.dense(tensors.ffn),
            after_ffn_norm=self.optional_norm(norms.after_ffn),
        )

    def dense(self, block: FeedForward) -> DenseFeedForward:
        gate = ACTIVATIONS[self.config.activation]
        pack = pack_gated_linear if gate is None else pack_linear
        gate_up = pack(self.stacked(block.gate_up.weights()), self.bias(block.gate_up))
        return DenseFeedForward(gate_up, self.packed(block.down), gate)

    def mixture(self, block: Experts) -> MixtureOfExperts:
        assert self.config.experts is not None
        experts = tuple(self.dense(expert) for expert in block.experts)
        chosen, normalised = self.config.experts.chosen, self.config.experts.normalised
        return MixtureOfExperts(self.packed(block.router), experts, chosen, normalised)

    def packed(self, matrix: Matrix) -> PackedLinear:
        return pack_linear(self.stacked(matrix.weights()), self.bias(matrix))

    def bias(self, matrix: Matrix) -> torch.Tensor | None:
        return self.stacked(matrix.biases()) if matrix.bias else None

    def norm(self, name: str) -> torch.Tensor:
        weight = self.tensor(name)
        if self.config.family.offset_norms:
            weight = weight.float() + 1.0
        return weight.to(device=self.device, dtype=self.dtype).contiguous()

    def optional_norm(self, name: str | None) -> torch.Tensor | None:
        return None if name is None else self.norm(name)

    def stacked(self, names: Sequence[str]) -> torch.Tensor:
        """The named tensors one above the other."""
        parts = [self.tensor(name).to(device=self.device, dtype=self.dtype) for name in names]
        return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
