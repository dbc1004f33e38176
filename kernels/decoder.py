"""The layers of a decoder as one operation: what a family of models adds to Llama is an option of the layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from kernels.backend import operation
from kernels.checks import check_attention, check_rotation, check_written
from kernels.packed import PackedLinear
from kernels.ragged import RaggedBatch


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
    """Layers 0, 1, .. of the pool, and what they have in common."""

    layers: tuple[DecoderLayer, ...]
    heads: int
    epsilon: float
    scale: float
    soft_cap: float | None = None
    prepared: dict[str, Any] = field(default_factory=dict, repr=False)
    """What a backend makes of the layers once."""


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
    rotations  (cosine, sine) float32 [tokens, half] each
    returns    [tokens, hidden], the last product: `hidden + it` is the residual stream. Valid until the next call.

    Raises as `write_rotated_kv` and `paged_attention`; the pool may then be written in part.
    """
    # Shapes only: how q, k and v lie is the implementation's business.
    query = hidden.new_empty(1).expand(hidden.shape[0], stack.heads, pool.shape[5])
    key = hidden.new_empty(1).expand(hidden.shape[0], pool.shape[3], pool.shape[5])
    check_attention(query, pool, batch, None, stack.soft_cap, None, None)
    check_written(pool, key, key, slots, None)
    for cosine, sine in rotations:
        check_rotation(query, cosine, sine, key)
    delta: torch.Tensor = operation("decoder_layers", hidden.device.type)(stack, hidden, rotations, slots, batch, pool)
    return delta
