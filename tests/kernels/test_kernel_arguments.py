"""What the public functions refuse: most of it would otherwise be read or written where nothing lies.

Geometry of every case: a pool of 5 rows of 2 layers, 2 KV heads, blocks of 4, head dim 32; one query token of 4 heads
in a context of 6, whose table is [1, 2]; K and V of one token for slot 4.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import kernels
from kernels import DecoderLayer, DecoderStack, GatedFeedForward, PoolShape, RaggedBatch, reference

BLOCKS, LAYERS, KV_HEADS, BLOCK_SIZE, HEAD_DIM, HEADS = 4, 2, 2, 4, 32, 4
WIDTH, FFN = 48, 24


def elsewhere(*dims: int) -> torch.Tensor:
    return torch.empty(*dims, device="meta")


def pool(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return kernels.allocate_pool(PoolShape(BLOCKS, LAYERS, KV_HEADS, BLOCK_SIZE, HEAD_DIM, dtype))


def batch(**changed: Any) -> RaggedBatch:
    return replace(RaggedBatch.of([1], [6], [[1, 2]]), **changed)


def attend(**changed: Any) -> None:
    given = {"query": torch.ones(1, HEADS, HEAD_DIM), "pool": pool(), "layer": 0, "batch": batch(), "scale": 0.1}
    kernels.paged_attention(**(given | changed))


KEY = torch.ones(1, KV_HEADS, HEAD_DIM)
SLOTS = torch.tensor([4])
TURN = torch.ones(1, HEAD_DIM // 2)


def write(**changed: Any) -> None:
    kernels.write_kv(**({"pool": pool(), "layer": 0, "key": KEY, "value": KEY, "slots": SLOTS} | changed))


def rotate(**changed: Any) -> None:
    given = {"pool": pool(), "layer": 0, "key": KEY, "value": KEY, "slots": SLOTS, "cosine": TURN, "sine": TURN}
    kernels.write_rotated_kv(**(given | {"query": torch.ones(1, HEADS, HEAD_DIM)} | changed))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "read of a layer beyond": (lambda: attend(layer=2), r"layer must be an int in 0\.\.1, got 2"),
    "read of a layer before": (lambda: attend(layer=-1), "layer"),
    "write of a layer beyond": (lambda: write(layer=2), "layer"),
    "write of a layer before": (lambda: write(layer=-1), "layer"),
    "rotated write of a layer beyond": (lambda: rotate(layer=10**6), "layer"),
    "layer of no int": (lambda: attend(layer=0.5), "layer"),
    "pool on another device": (lambda: attend(pool=pool().to("meta")), "pool lies on meta"),
    "tables on another device": (lambda: attend(batch=RaggedBatch.of([1], [6], [[1, 2]], "meta")), "block_tables lies"),
    "sinks on another device": (lambda: attend(sinks=elsewhere(HEADS)), "sinks lies on meta"),
    "key on another device": (lambda: write(key=elsewhere(1, KV_HEADS, HEAD_DIM)), "key lies on meta"),
    "slots on another device": (lambda: write(slots=SLOTS.to("meta")), "slots lies on meta"),
    "sine on another device": (lambda: rotate(sine=TURN.to("meta")), "sine lies on meta"),
    "scales on another device": (
        lambda: attend(pool=pool(torch.float8_e5m2), kv_scales=elsewhere(2, KV_HEADS)),
        "kv_scales lies on meta",
    ),
    "part of a pool, by the reference": (lambda: attend_reference(pool()[:, 1:]), "pool must be contiguous"),
    "no window": (lambda: attend(window=0), r"window must be an int in 1\.\.2147483647"),
    "window beyond 32 bits": (lambda: attend(window=2**31), "window"),
    "infinite cap": (lambda: attend(soft_cap=float("inf")), "soft_cap must be positive and finite"),
    "no heads": (lambda: attend(query=torch.ones(1, 0, HEAD_DIM)), "0 query heads"),
    "query of two dimensions": (lambda: attend(query=torch.ones(HEADS, HEAD_DIM)), r"query must be \[tokens, heads"),
    "pool of five dimensions": (lambda: attend(pool=pool()[0]), r"pool must be \[num_blocks \+ 1"),
    "integer queries over fp8": (
        lambda: attend(
            query=torch.ones(1, HEADS, HEAD_DIM, dtype=torch.int32),
            pool=pool(torch.float8_e5m2),
            kv_scales=torch.ones(2, KV_HEADS),
        ),
        "queries are torch.int32",
    ),
    "scales beside a float32 pool": (lambda: attend(kv_scales=torch.ones(2, KV_HEADS)), "kv_scales belong to an fp8"),
    "one table too short": (
        lambda: attend(query=torch.ones(2, HEADS, HEAD_DIM), batch=RaggedBatch.of([1, 1], [6, 4], [[1], [1, 2]])),
        "sequence 0: a context of 6 tokens does not fit block tables of 1 blocks of 4",
    ),
    "slots of 32 bits": (lambda: write(slots=SLOTS.int()), r"slots must be int64 \[tokens\], got int32 \[1\]"),
    "slots of two dimensions": (lambda: write(slots=SLOTS[None]), "slots must be int64"),
    "integer keys": (lambda: write(key=KEY.int(), value=KEY.int()), "floating-point"),
    "value of another dtype": (lambda: write(value=KEY.double()), "one floating-point dtype"),
    "sine of another dtype": (lambda: rotate(sine=TURN.double()), "must both be float32"),
    "query of another dtype": (lambda: rotate(query=torch.ones(1, HEADS, HEAD_DIM).half()), "of torch.float32, as key"),
    "query that shares memory": (
        lambda: kernels.write_rotated_kv(
            pool(),
            0,
            torch.ones(1, HEADS, HEAD_DIM).expand(2, -1, -1),
            KEY.repeat(2, 1, 1),
            KEY.repeat(2, 1, 1),
            torch.tensor([4, 5]),
            TURN.repeat(2, 1),
            TURN.repeat(2, 1),
        ),
        "query is written in place",
    ),
    "tables of 64 bits": (lambda: batch(block_tables=torch.tensor([[1, 2]])), r"block_tables must be int32 \[1, max"),
    "lengths of 64 bits": (lambda: batch(context_lengths=torch.tensor([6])), r"context_lengths must be int32 \[1\]"),
    "starts too few": (lambda: batch(query_starts=torch.tensor([0], dtype=torch.int32)), "query_starts must be int32"),
    "tables by strides": (
        lambda: batch(block_tables=torch.ones(1, 4, dtype=torch.int32)[:, ::2]),
        "block_tables must be contiguous",
    ),
    "context beyond 32 bits": (lambda: RaggedBatch.of([1], [2**31], [[1]]), "in a context of 2147483648"),
    "linear of one dimension": (lambda: multiply(torch.ones(64)), r"values must be \[tokens, in\], got \[64\]"),
    "linear of three dimensions": (lambda: multiply(torch.ones(2, 3, 64)), "values must be"),
    "linear of no dimension": (lambda: multiply(torch.tensor(1.0)), "values must be"),
    "weights elsewhere": (
        lambda: kernels.linear(torch.ones(1, 64), kernels.pack_linear(elsewhere(16, 64))),
        "weights lies on meta",
    ),
    "weights packed by another backend": (
        lambda: reference.linear(torch.ones(1, 64), replace(kernels.pack_linear(torch.ones(16, 64)), backend="x")),
        "packed by the x kernels",
    ),
    "bias too short": (lambda: kernels.pack_linear(torch.ones(64, 32), torch.ones(5)), r"bias must be .* \[64\]"),
    "bias too long": (lambda: kernels.pack_linear(torch.ones(16, 32), torch.ones(64)), r"bias must be .* \[16\]"),
    "gated bias of one half": (
        lambda: kernels.pack_gated_linear(torch.ones(64, 32), torch.ones(32)),
        r"bias .* \[64\]",
    ),
    "gated rows odd": (lambda: kernels.pack_gated_linear(torch.ones(7, 32)), "rows of gate and as many of up"),
    "unknown activation": (
        lambda: kernels.pack_gated_linear(torch.ones(8, 32), None, "relu"),  # type: ignore[arg-type]
        "activation 'relu' is not known; known: silu, gelu_tanh",
    ),
    "weights of one dimension": (lambda: kernels.pack_linear(torch.ones(16)), r"weight must be .*\[out, in\]"),
    "no inputs": (lambda: kernels.pack_linear(torch.ones(16, 0)), "weight must be"),
    "no outputs": (lambda: kernels.pack_linear(torch.ones(0, 16)), "weight must be"),
    "norm weight too short": (lambda: norm(weight=torch.ones(8)), r"weight must be torch\.float32 \[64\]"),
    "norm weight elsewhere": (lambda: norm(weight=elsewhere(64)), "weight lies on meta"),
    "norm weight of another dtype": (lambda: norm(weight=torch.ones(64).half()), "weight must be"),
    "norm of three dimensions": (lambda: norm(hidden=torch.ones(2, 1, 64)), r"hidden must be \[tokens, width\]"),
    "delta of another width": (lambda: norm(delta=torch.ones(2, 32)), "delta must be"),
    "silu of an odd width": (lambda: kernels.silu_mul(torch.ones(2, 7)), "gate_up must be"),
    "silu of three dimensions": (lambda: kernels.silu_mul(torch.ones(2, 4, 8)), "gate_up must be"),
    "ids of 32 bits": (lambda: look_up(torch.tensor([1], dtype=torch.int32)), "token_ids must be int64"),
    "ids of two dimensions": (lambda: look_up(torch.tensor([[1]])), "token_ids must be int64"),
    "rows of gated weights": (
        lambda: kernels.embedding(torch.tensor([1]), kernels.pack_gated_linear(torch.ones(8, 4))),
        "gated weights have no rows",
    ),
    "largest of nothing": (lambda: kernels.argmax(torch.empty(3, 0)), "width at least 1"),
    "top of one dimension": (lambda: kernels.top_k(torch.ones(3), 1), "logits must be"),
    "pool of integers": (lambda: PoolShape(2, 1, 1, 4, 32, torch.int32), "dtype must be a floating-point one"),
}


def attend_reference(part: torch.Tensor) -> torch.Tensor:
    return reference.paged_attention(torch.ones(1, HEADS, HEAD_DIM), part, 0, batch(), scale=0.1)


def multiply(values: torch.Tensor) -> torch.Tensor:
    return kernels.linear(values, kernels.pack_linear(torch.ones(16, 64)))


def look_up(ids: torch.Tensor) -> torch.Tensor:
    return kernels.embedding(ids, kernels.pack_linear(torch.ones(16, 64)))


def norm(**changed: Any) -> None:
    kernels.add_rms_norm(
        **({"hidden": torch.ones(2, 64), "delta": None, "weight": torch.ones(64), "epsilon": 1e-5} | changed)
    )


@pytest.mark.unit
@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_named(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.unit
def test_what_the_table_changes_is_right_before() -> None:
    attend()
    write()
    rotate()
    norm()


@pytest.mark.unit
def test_lengths_and_blocks_may_be_any_integers_but_nothing_else() -> None:
    given = RaggedBatch.of(torch.tensor([1]), torch.tensor([6]), [torch.tensor([1, 2])])  # type: ignore[arg-type, list-item]
    assert (given.host_query_lengths, given.host_context_lengths) == ((1,), (6,))
    assert given.block_tables.tolist() == [[1, 2]]
    columns = torch.tensor([[1], [2]], dtype=torch.int32)
    assert RaggedBatch.of([1], [6], columns.t()).block_tables.is_contiguous()
    for arguments in (([1.0], [6], [[1, 2]]), ([1], [6], [[1.5, 2]])):
        with pytest.raises(TypeError):
            RaggedBatch.of(*arguments)  # type: ignore[arg-type]


def layer(**changed: Any) -> DecoderLayer:
    rows = torch.ones
    given = {
        "attention_norm": torch.ones(WIDTH),
        "qkv": kernels.pack_linear(rows((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH)),
        "attention_out": kernels.pack_linear(rows(WIDTH, HEADS * HEAD_DIM)),
        "ffn_norm": torch.ones(WIDTH),
        "ffn": GatedFeedForward(kernels.pack_gated_linear(rows(2 * FFN, WIDTH)), kernels.pack_linear(rows(WIDTH, FFN))),
    }
    return DecoderLayer(**(given | changed))


def stack(*layers: DecoderLayer) -> DecoderStack:
    return DecoderStack(layers, HEADS, 1e-5, 0.1)


def weights(out: int, inner: int) -> Any:
    return kernels.pack_linear(torch.ones(out, inner))


LAYERS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "qkv too wide": ({"qkv": weights(4096, WIDTH)}, "layer 1: qkv makes 4096 of 48"),
    "qkv of other inputs": ({"qkv": weights(256, WIDTH + 1)}, "qkv makes 256 of 49"),
    "attention_out of other inputs": ({"attention_out": weights(WIDTH, 4096)}, "attention_out makes 48 of 4096"),
    "norm too short": ({"attention_norm": torch.ones(3)}, r"attention_norm must be torch\.float32 \[48\]"),
    "norm by strides": ({"ffn_norm": torch.ones(2 * WIDTH)[::2]}, "ffn_norm must be .* contiguous"),
    "norm elsewhere": ({"ffn_norm": elsewhere(WIDTH)}, "ffn_norm lies on meta"),
    "norm of another dtype": ({"after_ffn_norm": torch.ones(WIDTH).double()}, "after_ffn_norm must be"),
    "query norm alone": ({"query_norm": torch.ones(HEAD_DIM)}, "query_norm and key_norm come together"),
    "head norms too short": ({"query_norm": torch.ones(3), "key_norm": torch.ones(3)}, r"query_norm must be .* \[32\]"),
    "down of other inputs": (
        {"ffn": GatedFeedForward(kernels.pack_gated_linear(torch.ones(2 * FFN, WIDTH)), weights(WIDTH, FFN + 1))},
        "down makes 48 of 25",
    ),
    "no gate": ({"ffn": GatedFeedForward(weights(FFN, WIDTH), weights(WIDTH, FFN))}, "gate_up must be packed with"),
    "rotation before": ({"rotation": -1}, "rotation"),
    "window beyond 32 bits": ({"window": 2**40}, "window"),
}


@pytest.mark.unit
@pytest.mark.parametrize("name", LAYERS_REFUSED)
def test_a_stack_checks_its_layers_when_it_is_made(name: str) -> None:
    changed, message = LAYERS_REFUSED[name]
    with pytest.raises(ValueError, match=message):
        stack(layer(), layer(**changed))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("layers", "changed", "message"),
    [
        ([layer()] * 3, {}, "a stack of 3 layers, 2 KV heads and head dim 32 does not fit a pool of 2, 2 and 32"),
        ([layer(rotation=5)], {}, "the layers name 6 rotations, 1 are given"),
        ([layer()], {"rotations": []}, "the layers name 1 rotations, 0 are given"),
        ([layer()], {"slots": SLOTS.int()}, "slots must be int64"),
        ([layer()], {"hidden": torch.ones(1, WIDTH).bfloat16()}, "hidden is torch.bfloat16"),
        ([layer()], {"hidden": torch.ones(1, WIDTH + 1)}, r"hidden is torch.float32 \[1, 49\]"),
        ([layer()], {"pool": pool()[:, :, :, :1]}, "1 and 32"),
    ],
)
def test_a_stack_is_checked_against_the_step(layers: list[DecoderLayer], changed: dict[str, Any], message: str) -> None:
    given = {
        "hidden": torch.ones(1, WIDTH),
        "rotations": [(TURN, TURN)],
        "slots": SLOTS,
        "batch": batch(),
        "pool": pool(),
    }
    kernels.decoder_layers(stack(layer()), **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        kernels.decoder_layers(stack(*layers), **(given | changed))


@pytest.mark.unit
def test_a_stack_without_layers_or_even_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="0 layers"):
        stack()
    with pytest.raises(ValueError, match="do not make 3 heads"):
        DecoderStack((layer(),), 3, 1e-5, 0.1)


@pytest.mark.unit
def test_block_ids_come_in_any_sequence_but_as_ints() -> None:
    """Tensors as ids were compared by identity: two copies to one block went through."""
    shape = PoolShape(6, 1, 1, 2, 4, torch.float32)
    blocks, host = kernels.allocate_pool(shape), kernels.allocate_host_pool(shape, 3, pinned=False)
    blocks.copy_(torch.arange(7.0).view(7, 1, 1, 1, 1, 1).expand_as(blocks))
    before = blocks.clone()
    with pytest.raises(ValueError, match="more than one copy"):
        kernels.copy_blocks(blocks, torch.tensor([1, 2]), torch.tensor([5, 5]))  # type: ignore[arg-type]
    for wrong in ([5, 6.0], torch.tensor([5.0, 6.0])):
        with pytest.raises(TypeError, match="destinations must be block ids"):
            kernels.copy_blocks(blocks, [1, 2], wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="host_blocks must be block ids"):
            kernels.swap_out(blocks, host, [1, 2], wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="blocks must be block ids"):
            kernels.zero_blocks(blocks, wrong)  # type: ignore[arg-type]
    assert torch.equal(blocks, before)
    kernels.copy_blocks(blocks, torch.tensor([1, 2]), torch.tensor([5, 6]))  # type: ignore[arg-type]
    kernels.swap_out(blocks, host, torch.tensor([2]), torch.tensor([0]))  # type: ignore[arg-type]
    kernels.zero_blocks(blocks, (block for block in [3]))  # type: ignore[arg-type]
    assert blocks[:, 0, 0, 0, 0, 0].tolist() == [0, 1, 2, 0, 4, 1, 2]
    assert host[0].unique().tolist() == [2]


@pytest.mark.unit
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to pin memory for")
def test_pinned_memory_without_a_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="pinned host blocks need a CUDA device"):
        kernels.allocate_host_pool(PoolShape(1, 1, 1, 2, 4, torch.float32), 1, pinned=True)


@pytest.mark.unit
def test_a_device_may_be_named_with_its_index() -> None:
    assert kernels.backend("cpu:0") == kernels.backend(torch.device("cpu")) == kernels.backend()
