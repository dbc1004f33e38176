"""The layers of a decoder by one call of the C++ library."""

import ctypes
from collections.abc import Sequence

import torch

from kernels import reference
from kernels.cpu.layers import product
from kernels.cpu.library import (
    HEAD_DIM_MULTIPLE,
    MAX_GROUP,
    MAX_HEAD_DIM,
    POOL_TYPES,
    TYPES,
    VALUE_TYPES,
    Attention,
    Decoder,
    DecoderLayer,
    Write,
    kernels,
    refuse,
)
from kernels.cpu.packing import NAME
from kernels.decoder import NORMS, DecoderStack, GatedFeedForward
from kernels.ragged import RaggedBatch

Rotations = Sequence[tuple[torch.Tensor, torch.Tensor]]


def decoder_layers(
    stack: DecoderStack,
    hidden: torch.Tensor,
    rotations: Rotations,
    slots: torch.Tensor,
    batch: RaggedBatch,
    pool: torch.Tensor,
) -> torch.Tensor:
    """`kernels.decoder_layers` in float32 and bfloat16; the rest goes to the reference, operation by operation."""
    layers = _prepared(stack, hidden)
    if layers is None or not _covered(stack, hidden, rotations, pool):
        return reference.decoder_layers(stack, hidden, rotations, slots, batch, pool)
    tokens, threads = hidden.shape[0], torch.get_num_threads()
    delta, slots = torch.empty_like(hidden), slots.contiguous()
    turns = [(cosine.contiguous(), sine.contiguous()) for cosine, sine in rotations]
    addresses = ctypes.c_void_p * len(turns)
    cosines = addresses(*(cosine.data_ptr() for cosine, _ in turns))
    sines = addresses(*(sine.data_ptr() for _, sine in turns))
    starts, lengths = batch.query_starts.contiguous(), batch.context_lengths.contiguous()
    tables = batch.block_tables.contiguous()
    num_blocks, _, _, kv_heads, block_size, head_dim = pool.shape
    block_stride, layer_stride, value_offset, head_stride, _, _ = pool.stride()
    stride = (stack.heads + 2 * kv_heads) * head_dim
    shared = {
        "keys": pool.data_ptr(),
        "value_offset": value_offset,
        "block_stride": block_stride,
        "head_stride": head_stride,
        "num_blocks": num_blocks,
        "pool_type": POOL_TYPES[pool.dtype],
        "heads": stack.heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "block_size": block_size,
        "threads": threads,
    }
    call = Decoder(
        layers=ctypes.addressof(layers),
        count=len(stack.layers),
        hidden=hidden.data_ptr(),
        delta=delta.data_ptr(),
        value_type=TYPES[hidden.dtype],
        rows=tokens,
        width=hidden.shape[1],
        epsilon=stack.epsilon,
        cosines=ctypes.addressof(cosines),
        sines=ctypes.addressof(sines),
        layer_bytes=layer_stride * pool.element_size(),
        threads=threads,
        attention=Attention(
            query_type=TYPES[hidden.dtype],
            token_stride=stride,
            query_starts=starts.data_ptr(),
            context_lengths=lengths.data_ptr(),
            block_tables=tables.data_ptr(),
            tokens=tokens,
            sequences=batch.num_sequences,
            table_width=tables.shape[1],
            scale=stack.scale,
            soft_cap=stack.soft_cap or 0.0,
            **shared,
        ),
        write=Write(
            query_stride=stride,
            key_stride=stride,
            value_stride=stride,
            slots=slots.data_ptr(),
            value_type=TYPES[hidden.dtype],
            tokens=tokens,
            half=turns[0][0].shape[1],
            **shared,
        ),
    )
    status = kernels().decoder(ctypes.byref(call))
    refuse(status, f"a slot or a block table points outside the pool's {num_blocks} blocks")
    return delta


def _covered(stack: DecoderStack, hidden: torch.Tensor, rotations: Rotations, pool: torch.Tensor) -> bool:
    head_dim = pool.shape[5]
    return (
        hidden.is_contiguous()
        and pool.dtype in VALUE_TYPES
        and pool.stride(5) == 1
        and pool.stride(4) == head_dim
        and head_dim % HEAD_DIM_MULTIPLE[kernels().isa] == 0
        and head_dim <= MAX_HEAD_DIM
        and stack.heads // pool.shape[3] <= MAX_GROUP
        and all(cosine.dtype == torch.float32 and cosine.shape == rotations[0][0].shape for cosine, _ in rotations)
    )


def _prepared(stack: DecoderStack, hidden: torch.Tensor) -> "ctypes.Array[DecoderLayer] | None":
    """The layers as the library takes them, or None when it does not; made once per dtype of the activations."""
    name = f"{NAME} {hidden.dtype}"
    if name not in stack.prepared:
        stack.prepared[name] = _layers(stack, hidden)
    layers: ctypes.Array[DecoderLayer] | None = stack.prepared[name]
    return layers


def _layers(stack: DecoderStack, hidden: torch.Tensor) -> "ctypes.Array[DecoderLayer] | None":
    dtype = hidden.dtype
    layers = (DecoderLayer * len(stack.layers))()
    for layer, to in zip(stack.layers, layers, strict=True):
        if not isinstance(layer.ffn, GatedFeedForward):
            return None
        norms = {name: getattr(layer, name) for name in NORMS}
        gate_up, down = layer.ffn
        products = {"qkv": layer.qkv, "attention_out": layer.attention_out, "gate_up": gate_up, "down": down}
        if (
            dtype not in TYPES
            or any(weight is not None and weight.dtype != dtype for weight in norms.values())
            or any(packed.backend != NAME for packed in products.values())
        ):
            return None
        for name, weight in norms.items():
            setattr(to, name, None if weight is None else weight.data_ptr())
        for name, packed in products.items():
            setattr(to, name, product(packed, dtype, dtype))
        to.window, to.rotation = layer.window or 0, layer.rotation
    return layers
