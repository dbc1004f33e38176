"""A decoder from token ids to logits as one operation."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.backend import operation
from kernels.checks import check_device, check_pool, check_query_dtype, described
from kernels.decoder import DecoderStack, check_stack
from kernels.layer_checks import check_lookup
from kernels.packed import PackedLinear
from kernels.ragged import RaggedBatch


@dataclass(frozen=True, slots=True, eq=False)
class DecoderEnds:
    """What lies before and behind the layers."""

    embedding: PackedLinear
    norm: torch.Tensor
    """[hidden], in the dtype of the activations."""
    output: PackedLinear
    factor: float = 1.0
    """Embeddings are multiplied by it."""


def decoder_logits(
    ends: DecoderEnds,
    stack: DecoderStack,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    rotations: Sequence[tuple[torch.Tensor, torch.Tensor]],
    slots: torch.Tensor,
    batch: RaggedBatch,
    pool: torch.Tensor,
    logits_at: torch.Tensor | None = None,
) -> torch.Tensor:
    """Runs a step's tokens through the model, writes their K and V into the pool, and returns logits.

    token_ids, positions, slots  int64 [tokens]
    rotations  by position, (cosine, sine) float32 [positions, half] each, as many as the layers name
    pool       as `decoder_layers` takes it
    logits_at  int64 [rows], the tokens whose logits are wanted; None for all
    returns    float32 [rows, vocab]

    Raises ValueError for shapes, dtypes and devices that do not fit, IndexError for ids, positions and slots outside
    what they index; the pool may then be written in part.
    """
    check_lookup(token_ids, ends.embedding)
    tokens, device = token_ids.shape[0], token_ids.device
    for name, given in (("positions", positions), ("slots", slots)):
        if given.dim() != 1 or given.dtype != torch.int64 or given.shape[0] != tokens:
            raise ValueError(f"{name} must be int64 [{tokens}], got {described(given)}")
    if logits_at is not None and (logits_at.dim() != 1 or logits_at.dtype != torch.int64):
        raise ValueError(f"logits_at must be int64 [rows], got {described(logits_at)}")
    check_device(
        device, positions=positions, slots=slots, logits_at=logits_at, pool=pool, block_tables=batch.block_tables
    )
    if tokens != batch.num_tokens:
        raise ValueError(f"{tokens} token ids for a batch of {batch.num_tokens} tokens")
    _check_fit(ends, stack, pool, rotations)
    batch.check_tables(pool.shape[4])
    logits: torch.Tensor = operation("decoder_logits", device.type)(
        ends, stack, token_ids, positions, rotations, slots, batch, pool, logits_at
    )
    return logits


def _check_fit(
    ends: DecoderEnds,
    stack: DecoderStack,
    pool: torch.Tensor,
    rotations: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """ValueError unless model, pool and rotations fit each other, which they do in every step if they do in one."""
    turns = [(turn.shape, turn.dtype, turn.device) for rotation in rotations for turn in rotation]
    fit = (ends, pool.shape, pool.dtype, turns)
    if stack.prepared.get("fit") == fit:
        return
    check_pool(pool)
    weight = stack.layers[0].attention_norm
    check_query_dtype(weight.dtype, pool.dtype)
    check_stack(stack, pool, rotations)
    if ends.norm.shape != weight.shape or ends.norm.dtype != weight.dtype or not ends.norm.is_contiguous():
        raise ValueError(f"norm must be {described(weight)}, contiguous, got {described(ends.norm)}")
    for name, packed in (("embedding", ends.embedding), ("output", ends.output)):
        if packed.in_features != stack.width or packed.gated:
            raise ValueError(f"{name} must be weights of width {stack.width} without a gate")
    check_device(weight.device, norm=ends.norm, embedding=ends.embedding.weight, output=ends.output.weight)
    for cosine, sine in rotations:
        check_device(weight.device, cosine=cosine, sine=sine)
        shape = cosine.shape
        if shape != rotations[0][0].shape or sine.shape != shape or len(shape) != 2 or 2 * shape[1] > stack.head_dim:
            raise ValueError(
                f"cosine {described(cosine)} and sine {described(sine)} must both be float32 [positions, half], "
                f"half at most {stack.head_dim // 2}, alike for all rotations"
            )
        if cosine.dtype != torch.float32 or sine.dtype != torch.float32:
            raise ValueError(f"cosine {described(cosine)} and sine {described(sine)} must both be float32")
    stack.prepared["fit"] = fit
