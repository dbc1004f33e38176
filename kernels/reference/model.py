"""A decoder from token ids to logits, operation by operation."""

from collections.abc import Sequence

import torch

from kernels.backend import operation
from kernels.decoder import DecoderStack
from kernels.model import DecoderEnds
from kernels.ragged import RaggedBatch


def decoder_logits(
    ends: DecoderEnds,
    stack: DecoderStack,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    rotations: Sequence[tuple[torch.Tensor, torch.Tensor]],
    slots: torch.Tensor,
    batch: RaggedBatch,
    pool: torch.Tensor,
    logits_at: torch.Tensor | None,
) -> torch.Tensor:
    """`kernels.decoder_logits`, each operation by the backend that serves the device."""
    device = token_ids.device.type
    hidden = operation("embedding", device)(token_ids, ends.embedding, stack.layers[0].attention_norm.dtype)
    if ends.factor != 1.0:
        hidden = hidden * ends.factor
    turns = [(cosine.index_select(0, positions), sine.index_select(0, positions)) for cosine, sine in rotations]
    delta = operation("decoder_layers", device)(stack, hidden, turns, slots, batch, pool)
    if logits_at is not None:
        hidden, delta = hidden.index_select(0, logits_at), delta.index_select(0, logits_at)
    last = operation("add_rms_norm", device)(hidden, delta, ends.norm, stack.epsilon)
    logits: torch.Tensor = operation("linear", device)(last, ends.output, torch.float32)
    return logits
