"""A decoder's weights, read from a checkpoint and made ready for the kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels import (
    DecoderLayer,
    DecoderStack,
    GatedFeedForward,
    PackedLinear,
    Quantization,
    pack_gated_linear,
    pack_linear,
)
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
class DecoderWeights:
    """Norms are what the normed values are multiplied with, in the dtype of the activations."""

    embedding: PackedLinear
    stack: DecoderStack
    norm: torch.Tensor
    output: PackedLinear
    """The embedding itself when they are tied."""

    @classmethod
    def read(
        cls,
        config: DecoderConfig,
        read: ReadTensor,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization | None = None,
    ) -> "DecoderWeights":
        """Reads every tensor of `tensor_shapes(config)` once, in the order of the layers."""
        reader = _Reader(config, read, dtype, device, quantization)
        # Four bits in the table cost more than in any layer, and it is looked up by the row as well.
        table_quantization: Quantization | None = None if quantization is None else "int8"
        table = pack_linear(reader.stacked([EMBEDDING]), None, table_quantization)
        stack = DecoderStack(
            layers=tuple(reader.layer(index) for index in range(config.num_layers)),
            heads=config.num_heads,
            epsilon=config.rms_eps,
            scale=config.scale,
            soft_cap=config.attention_cap,
        )
        norm = reader.norm(FINAL_NORM)
        tied = config.tied_embeddings
        output = table if tied else pack_linear(reader.stacked([OUTPUT]), None, table_quantization)
        return cls(table, stack, norm, output)


@dataclass(frozen=True, slots=True)
class _Reader:
    config: DecoderConfig
    tensor: ReadTensor
    dtype: torch.dtype
    device: torch.device
    quantization: Quantization | None

    @property
    def activations(self) -> torch.dtype:
        """A CPU computes in float32 whatever the weights are stored in: rounding in between would only cost."""
        half = self.dtype == torch.bfloat16
        return torch.float32 if half and self.device.type == "cpu" else self.dtype

    def layer(self, index: int) -> DecoderLayer:
        tensors = layer_tensors(self.config, index)
        norms = tensors.norms
        return DecoderLayer(
            attention_norm=self.norm(norms.attention),
            qkv=self.packed(tensors.qkv),
            query_norm=self.optional_norm(norms.query),
            key_norm=self.optional_norm(norms.key),
            attention_out=self.packed(tensors.attention_out),
            after_attention_norm=self.optional_norm(norms.after_attention),
            ffn_norm=self.norm(norms.ffn),
            ffn=self.mixture(tensors.ffn) if isinstance(tensors.ffn, Experts) else self.feed_forward(tensors.ffn),
            after_ffn_norm=self.optional_norm(norms.after_ffn),
            window=self.config.windows[index],
            rotation=self.config.layer_ropes[index],
        )

    def feed_forward(self, block: FeedForward) -> GatedFeedForward | DenseFeedForward:
        dense = self.dense(block)
        return GatedFeedForward(dense.gate_up, dense.down) if dense.gate is None else dense

    def dense(self, block: FeedForward) -> DenseFeedForward:
        gate = ACTIVATIONS[self.config.activation]
        weight, bias = self.stacked(block.gate_up.weights()), self.bias(block.gate_up)
        if isinstance(gate, str):
            gate_up = pack_gated_linear(weight, bias, gate, self.quantization)
            return DenseFeedForward(gate_up, self.packed(block.down), None)
        return DenseFeedForward(pack_linear(weight, bias, self.quantization), self.packed(block.down), gate)

    def mixture(self, block: Experts) -> MixtureOfExperts:
        assert self.config.experts is not None
        experts = tuple(self.dense(expert) for expert in block.experts)
        chosen, normalised = self.config.experts.chosen, self.config.experts.normalised
        router = pack_linear(self.stacked(block.router.weights()), self.bias(block.router))
        return MixtureOfExperts(router, experts, chosen, normalised)

    def packed(self, matrix: Matrix) -> PackedLinear:
        return pack_linear(self.stacked(matrix.weights()), self.bias(matrix), self.quantization)

    def bias(self, matrix: Matrix) -> torch.Tensor | None:
        return self.stacked(matrix.biases()) if matrix.bias else None

    def norm(self, name: str) -> torch.Tensor:
        weight = self.tensor(name).to(device=self.device, dtype=self.dtype).to(self.activations)
        return weight + 1.0 if self.config.family.offset_norms else weight.contiguous()

    def optional_norm(self, name: str | None) -> torch.Tensor | None:
        return None if name is None else self.norm(name)

    def stacked(self, names: Sequence[str]) -> torch.Tensor:
        """The named tensors one above the other."""
        parts = [self.tensor(name).to(device=self.device, dtype=self.dtype) for name in names]
        return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
