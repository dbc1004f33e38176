"""The layers of a decoder as one operation: what a family of models adds to Llama is an option of the layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from kernels.backend import operation
from kernels.checks import (
    check_attention,
    check_device,
    check_pool,
    check_rank,
    check_rotation,
    check_soft_cap,
    check_window,
    check_written,
)
from kernels.packed import PackedLinear
from kernels.ragged import RaggedBatch

NORMS = ("attention_norm", "query_norm", "key_norm", "after_attention_norm", "ffn_norm", "after_ffn_norm")
"""Those of a layer, by name."""


class GatedFeedForward(NamedTuple):
    """down(activation(gate x) * (up x))"""

    gate_up: PackedLinear
    """Gated."""
    down: PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """One layer. Norms are [hidden], those of heads [head_dim], all in the dtype of the activations."""

    attention_norm: torch.Tensor
    qkv: PackedLinear
    """Rows of q, then k, then v."""
    attention_out: PackedLinear
    ffn_norm: torch.Tensor
    ffn: GatedFeedForward | Callable[[torch.Tensor], torch.Tensor]
    """Any other feed-forward takes and returns [tokens, hidden]; such layers run operation by operation."""
    query_norm: torch.Tensor | None = None
    """With key_norm: every head of q and k is normed before it is rotated."""
    key_norm: torch.Tensor | None = None
    after_attention_norm: torch.Tensor | None = None
    after_ffn_norm: torch.Tensor | None = None
    window: int | None = None
    rotation: int = 0
    """Which of the step's rotations."""


@dataclass(frozen=True, slots=True, eq=False)
class DecoderStack:
    """Layers 0, 1, .. of the pool, and what they have in common.

    ValueError unless there are layers, all of one geometry: every norm and product has the width, head dim and numbers
    of heads that the first layer's attention_norm and attention_out and `heads` say.
    """

    layers: tuple[DecoderLayer, ...]
    heads: int
    epsilon: float
    scale: float
    soft_cap: float | None = None
    prepared: dict[str, Any] = field(default_factory=dict, repr=False)
    """What a backend makes of the layers once. Threads may share a stack: at most it is made twice."""

    def __post_init__(self) -> None:
        if not self.layers or self.heads < 1:
            raise ValueError(f"a stack has layers and heads, got {len(self.layers)} layers of {self.heads} heads")
        check_soft_cap(self.soft_cap)
        first = self.layers[0].attention_out
        if first.in_features % self.heads or self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(
                f"qkv of {self.layers[0].qkv.out_features} outputs and attention_out of {first.in_features} inputs "
                f"do not make {self.heads} heads with KV heads that they share evenly"
            )
        for number, layer in enumerate(self.layers):
            try:
                self._check(layer)
            except ValueError as error:
                raise ValueError(f"layer {number}: {error}") from None

    @property
    def width(self) -> int:
        """Of the hidden state."""
        return self.layers[0].attention_norm.shape[0]

    @property
    def head_dim(self) -> int:
        return self.layers[0].attention_out.in_features // self.heads

    @property
    def kv_heads(self) -> int:
        return (self.layers[0].qkv.out_features // self.head_dim - self.heads) // 2

    @property
    def rotations(self) -> int:
        """How many a step must have."""
        return 1 + max(layer.rotation for layer in self.layers)

    def _check(self, layer: DecoderLayer) -> None:
        width, head_dim, weight = self.width, self.head_dim, self.layers[0].attention_norm
        attention = self.heads * head_dim
        products = {
            "qkv": (layer.qkv, width, attention + 2 * self.kv_heads * head_dim),
            "attention_out": (layer.attention_out, attention, width),
        }
        if isinstance(layer.ffn, GatedFeedForward):
            gate_up, down = layer.ffn
            products |= {"gate_up": (gate_up, width, gate_up.out_features), "down": (down, gate_up.out_features, width)}
        for name, (packed, inputs, outputs) in products.items():
            if (packed.in_features, packed.out_features) != (inputs, outputs):
                raise ValueError(
                    f"{name} makes {packed.out_features} of {packed.in_features}, in a layer of {width} it must make "
                    f"{outputs} of {inputs}"
                )
            if packed.gated != (name == "gate_up"):
                raise ValueError(f"{name} must be packed {'with' if name == 'gate_up' else 'without'} a gate")
            check_device(weight.device, **{name: packed.weight})
        if (layer.query_norm is None) != (layer.key_norm is None):
            raise ValueError("query_norm and key_norm come together")
        for name in NORMS:
            norm: torch.Tensor | None = getattr(layer, name)
            expected = (head_dim if name in ("query_norm", "key_norm") else width,)
            if norm is None:
                continue
            if norm.shape != expected or norm.dtype != weight.dtype or not norm.is_contiguous():
                raise ValueError(
                    f"{name} must be {weight.dtype} {list(expected)}, contiguous, got {norm.dtype} {list(norm.shape)}"
                )
            check_device(weight.device, **{name: norm})
        check_window(layer.window)
        if not isinstance(layer.rotation, int) or layer.rotation < 0:
            raise ValueError(f"rotation must be the index of one, got {layer.rotation!r}")


def check_stack(
    stack: DecoderStack, pool: torch.Tensor, rotations: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """ValueError unless the pool has the stack's geometry and there are as many rotations as its layers name."""
    if pool.shape[1] < len(stack.layers) or (pool.shape[3], pool.shape[5]) != (stack.kv_heads, stack.head_dim):
        raise ValueError(
            f"a stack of {len(stack.layers)} layers, {stack.kv_heads} KV heads and head dim {stack.head_dim} does not "
            f"fit a pool of {pool.shape[1]}, {pool.shape[3]} and {pool.shape[5]}"
        )
    if len(rotations) < stack.rotations:
        raise ValueError(f"the layers name {stack.rotations} rotations, {len(rotations)} are given")


def decoder_layers(
    stack: DecoderStack,
    hidden: torch.Tensor,
    rotations: Sequence[tuple[torch.Tensor, torch.Tensor]],
    slots: torch.Tensor,
    batch: RaggedBatch,
    pool: torch.Tensor,
) -> torch.Tensor:
    """Runs all layers on a step's tokens, and writes their K and V into the pool.

    hidden     [tokens, hidden], contiguous; embeddings before, the residual stream without the last product after
    rotations  (cosine, sine) float32 [tokens, half] each, as many as the layers name
    pool       with at least as many layers as the stack, and its KV heads and head dim
    returns    [tokens, hidden], the last product: `hidden + it` is the residual stream. Valid until the next call.

    Raises as `write_rotated_kv` and `paged_attention`; the pool may then be written in part. A stack may serve several
    threads at the same time, with pools or blocks of their own.
    """
    check_rank(2, "[tokens, hidden]", hidden=hidden)
    weight = stack.layers[0].attention_norm
    check_device(hidden.device, norms=weight, pool=pool)
    if hidden.shape[1] != stack.width or hidden.dtype != weight.dtype:
        raise ValueError(
            f"hidden is {hidden.dtype} {list(hidden.shape)}, the stack is for {weight.dtype} [tokens, {stack.width}]"
        )
    check_pool(pool)
    # Shapes only: how q, k and v lie is the implementation's business.
    query = hidden.new_empty(1).expand(hidden.shape[0], stack.heads, pool.shape[5])
    key = hidden.new_empty(1).expand(hidden.shape[0], pool.shape[3], pool.shape[5])
    check_attention(query, pool, batch, None, stack.soft_cap, None, None)
    check_written(pool, key, key, slots, None)
    check_stack(stack, pool, rotations)
    for cosine, sine in rotations:
        check_rotation(query, cosine, sine, key)
    delta: torch.Tensor = operation("decoder_layers", hidden.device.type)(stack, hidden, rotations, slots, batch, pool)
    return delta
