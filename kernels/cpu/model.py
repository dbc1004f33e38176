"""A decoder from token ids to logits by one call of the C++ library."""

import ctypes

import torch

from kernels import reference
from kernels.cpu.decoder import Rotations, addresses, covers, fill, prepared_layers, template
from kernels.cpu.layers import product
from kernels.cpu.library import TYPES, WEIGHT_TYPES, Decoder, DecoderLayer, Embedding, Model, kernels, refuse
from kernels.cpu.packing import NAME
from kernels.decoder import DecoderStack
from kernels.model import DecoderEnds
from kernels.ragged import RaggedBatch

MAX_ROTATIONS = 8


def decoder_logits(
    ends: DecoderEnds,
    stack: DecoderStack,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    rotations: Rotations,
    slots: torch.Tensor,
    batch: RaggedBatch,
    pool: torch.Tensor,
    logits_at: torch.Tensor | None,
) -> torch.Tensor:
    """`kernels.decoder_logits` in float32 and bfloat16; the rest goes to the reference, operation by operation."""
    dtype = ends.norm.dtype
    layers = prepared_layers(stack, dtype)
    if layers is None or not _covered(ends, stack, rotations, pool):
        return reference.decoder_logits(ends, stack, token_ids, positions, rotations, slots, batch, pool, logits_at)
    tokens = token_ids.shape[0]
    rows = tokens if logits_at is None else logits_at.shape[0]
    token_ids, positions, slots = token_ids.contiguous(), positions.contiguous(), slots.contiguous()
    logits_at = None if logits_at is None else logits_at.contiguous()
    streams = torch.empty(2, tokens, stack.width, dtype=dtype)  # the residual stream, and what is added to it next
    logits = torch.empty(rows, ends.output.out_features)
    cosines, sines = addresses(rotations)
    call = Model.from_buffer_copy(_template(ends, stack, layers, pool, rotations))
    lookup, decoder, output = call.embedding, call.decoder, call.output
    fill(decoder, tokens, slots, batch)
    lookup.ids, lookup.tokens, lookup.threads = token_ids.data_ptr(), tokens, decoder.threads
    lookup.output = decoder.hidden = streams.data_ptr()
    decoder.delta = streams.data_ptr() + tokens * stack.width * streams.element_size()
    decoder.cosines, decoder.sines = ctypes.addressof(cosines), ctypes.addressof(sines)
    call.positions, call.logits_at = positions.data_ptr(), None if logits_at is None else logits_at.data_ptr()
    output.output, output.rows, output.threads = logits.data_ptr(), rows, decoder.threads
    refuse(
        kernels().model(ctypes.byref(call)),
        f"a token id outside 0..{ends.embedding.out_features - 1}, a position outside 0..{len(rotations[0][0]) - 1}, a "
        f"row of logits outside 0..{tokens - 1}, or a slot or a block outside the pool's {pool.shape[0]} blocks",
    )
    return logits


def _covered(ends: DecoderEnds, stack: DecoderStack, rotations: Rotations, pool: torch.Tensor) -> bool:
    return (
        ends.embedding.backend == ends.output.backend == NAME
        and len(rotations) <= MAX_ROTATIONS
        and all(cosine.is_contiguous() and sine.is_contiguous() for cosine, sine in rotations)
        and covers(stack, rotations, pool)
    )


def _template(
    ends: DecoderEnds,
    stack: DecoderStack,
    layers: "ctypes.Array[DecoderLayer]",
    pool: torch.Tensor,
    rotations: Rotations,
) -> Model:
    """The arguments of a step but for what the step brings; made once per pool and table of rotations."""
    dtype, (length, half) = ends.norm.dtype, rotations[0][0].shape
    decoder = template(stack, layers, dtype, pool, half)
    known, made = stack.prepared.get("model", (None, None))
    if known != (ends, decoder, length):
        made = _made(ends, decoder, len(rotations), length, dtype)
        stack.prepared["model"] = (ends, decoder, length), made
    assert isinstance(made, Model)
    return made


def _made(ends: DecoderEnds, decoder: Decoder, rotations: int, length: int, dtype: torch.dtype) -> Model:
    table = ends.embedding
    return Model(
        embedding=Embedding(
            panels=table.weight.data_ptr(),
            scales=None if table.scales is None else table.scales.data_ptr(),
            output_type=TYPES[dtype],
            weight_type=WEIGHT_TYPES[table.weight.dtype],
            in_=table.in_features,
            out=table.out_features,
        ),
        factor=ends.factor,
        decoder=decoder,
        rotations=rotations,
        rotation_rows=length,
        norm=ends.norm.data_ptr(),
        output=product(ends.output, dtype, torch.float32),
    )
