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
    layers = prepared_layers(stack, hidden.dtype)
    if layers is None or not hidden.is_contiguous() or not covers(stack, rotations, pool):
        return reference.decoder_layers(stack, hidden, rotations, slots, batch, pool)
    tokens = hidden.shape[0]
    delta, slots = torch.empty_like(hidden), slots.contiguous()
    turns = [(cosine.contiguous(), sine.contiguous()) for cosine, sine in rotations]
    cosines, sines = addresses(turns)
    call = Decoder.from_buffer_copy(template(stack, layers, hidden.dtype, pool, turns[0][0].shape[1]))
    fill(call, tokens, slots, batch)
    call.hidden, call.delta = hidden.data_ptr(), delta.data_ptr()
    call.cosines, call.sines = ctypes.addressof(cosines), ctypes.addressof(sines)
    status = kernels().decoder(ctypes.byref(call))
    refuse(status, f"a slot or a block table points outside the pool's {pool.shape[0]} blocks")
    return delta


def addresses(rotations: Rotations) -> tuple["ctypes.Array[ctypes.c_void_p]", "ctypes.Array[ctypes.c_void_p]"]:
    """Where the cosines lie, and the sines; both are contiguous."""
    array = ctypes.c_void_p * len(rotations)
    return array(*(cosine.data_ptr() for cosine, _ in rotations)), array(*(sine.data_ptr() for _, sine in rotations))


def fill(call: Decoder, tokens: int, slots: torch.Tensor, batch: RaggedBatch) -> None:
    """What changes from step to step, but for where the rows and the rotations lie. Slots are contiguous."""
    threads = torch.get_num_threads()
    attention, write = call.attention, call.write
    call.rows = attention.tokens = write.tokens = tokens
    call.threads = attention.threads = write.threads = threads
    attention.query_starts = batch.query_starts.data_ptr()
    attention.context_lengths = batch.context_lengths.data_ptr()
    attention.block_tables = batch.block_tables.data_ptr()
    attention.sequences, attention.table_width = batch.block_tables.shape
    write.slots = slots.data_ptr()


def template(
    stack: DecoderStack, layers: "ctypes.Array[DecoderLayer]", dtype: torch.dtype, pool: torch.Tensor, half: int
) -> Decoder:
    """The arguments of a step but for what `fill` and its caller know; made once per pool."""
    key = (pool.data_ptr(), pool.shape, pool.stride(), pool.dtype, dtype, half)
    known, made = stack.prepared.get("template", (None, None))
    if known != key:
        made = _template(stack, layers, dtype, pool, half)
        stack.prepared["template"] = key, made
    assert isinstance(made, Decoder)
    return made


def _template(
    stack: DecoderStack, layers: "ctypes.Array[DecoderLayer]", dtype: torch.dtype, pool: torch.Tensor, half: int
) -> Decoder:
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
    }
    return Decoder(
        layers=ctypes.addressof(layers),
        count=len(stack.layers),
        value_type=TYPES[dtype],
        width=stack.width,
        epsilon=stack.epsilon,
        layer_bytes=layer_stride * pool.element_size(),
        attention=Attention(
            query_type=TYPES[dtype],
            token_stride=stride,
            scale=stack.scale,
            soft_cap=stack.soft_cap or 0.0,
            **shared,
        ),
        write=Write(
            query_stride=stride, key_stride=stride, value_stride=stride, value_type=TYPES[dtype], half=half, **shared
        ),
    )


def covers(stack: DecoderStack, rotations: Rotations, pool: torch.Tensor) -> bool:
    """Whether the library takes this pool and these rotations."""
    head_dim = pool.shape[5]
    return (
        pool.dtype in VALUE_TYPES
        and pool.stride(5) == 1
        and pool.stride(4) == head_dim
        and head_dim % HEAD_DIM_MULTIPLE[kernels().isa] == 0
        and head_dim <= MAX_HEAD_DIM
        and stack.heads // pool.shape[3] <= MAX_GROUP
        and all(cosine.dtype == torch.float32 and cosine.shape == rotations[0][0].shape for cosine, _ in rotations)
    )


def prepared_layers(stack: DecoderStack, dtype: torch.dtype) -> "ctypes.Array[DecoderLayer] | None":
    """The layers as the library takes them, or None when it does not; made once per dtype of the activations."""
    name = f"{NAME} {dtype}"
    if name not in stack.prepared:
        stack.prepared[name] = _layers(stack, dtype)
    layers: ctypes.Array[DecoderLayer] | None = stack.prepared[name]
    return layers


def _layers(stack: DecoderStack, dtype: torch.dtype) -> "ctypes.Array[DecoderLayer] | None":
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
