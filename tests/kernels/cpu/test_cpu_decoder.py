"""All layers in one call: bit for bit what the operations give one by one, and right against float64."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import relative_error

import kernels
from kernels import (
    DecoderEnds,
    DecoderLayer,
    DecoderStack,
    GatedFeedForward,
    PackedLinear,
    PoolShape,
    RaggedBatch,
    cpu,
    reference,
)

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS, BLOCK = 40, 4, 2, 16, 52, 3, 5


class Weights:
    """Draws the weights of a stack in float32; packs them for one backend in one dtype."""

    def __init__(self, options: set[str], activation: str) -> None:
        self.options, self.activation = options, activation
        self.generator = torch.Generator().manual_seed(len(options))
        self.drawn: list[torch.Tensor] = []
        self.next = 0

    def draw(self, *dims: int) -> torch.Tensor:
        """The same tensors in the same order for every stack that is made."""
        if self.next == len(self.drawn):
            scale = dims[-1] ** -0.5 if len(dims) > 1 else 1.0
            self.drawn.append((torch.randn(*dims, generator=self.generator) * scale).bfloat16().float())
        self.next += 1
        return self.drawn[self.next - 1]

    def stack(self, backend: object, weight_dtype: torch.dtype, activations: torch.dtype) -> DecoderStack:
        self.next = 0

        def packed(out: int, inner: int, gate: bool = False) -> PackedLinear:
            weight, bias = self.draw(out, inner).to(weight_dtype), self.draw(out)
            bias = bias.to(weight_dtype) if "bias" in self.options else None  # type: ignore[assignment]
            if gate:
                return backend.pack_gated_linear(weight, bias, self.activation)  # type: ignore[attr-defined, no-any-return]
            return backend.pack_linear(weight, bias)  # type: ignore[attr-defined, no-any-return]

        def norm(width: int, option: str | None = None) -> torch.Tensor | None:
            weight = self.draw(width).to(activations)
            return weight if option is None or option in self.options else None

        layers = []
        for index in range(LAYERS):
            layers.append(
                DecoderLayer(
                    attention_norm=norm(WIDTH),  # type: ignore[arg-type]
                    qkv=packed((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH),
                    attention_out=packed(WIDTH, HEADS * HEAD_DIM),
                    ffn_norm=norm(WIDTH),  # type: ignore[arg-type]
                    ffn=GatedFeedForward(packed(2 * FFN, WIDTH, gate=True), packed(WIDTH, FFN)),
                    query_norm=norm(HEAD_DIM, "head norms"),
                    key_norm=norm(HEAD_DIM, "head norms"),
                    after_attention_norm=norm(WIDTH, "sandwich"),
                    after_ffn_norm=norm(WIDTH, "sandwich"),
                    window=9 if "window" in self.options and index % 2 else None,
                    rotation=index % 2,
                )
            )
        cap = 3.0 if "soft cap" in self.options else None
        return DecoderStack(tuple(layers), HEADS, 1e-5, HEAD_DIM**-0.5, cap)


class Step:
    """A prompt chunk of 7 behind 6 cached tokens, and a decode in a context of 12: 8 tokens."""

    def __init__(self, hidden_dtype: torch.dtype, pool_dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(5)
        self.batch = RaggedBatch.of([7, 1], [13, 12], [[3, 1, 6], [2, 5, 4]])
        self.pool = torch.randn(
            PoolShape(6, LAYERS, KV_HEADS, BLOCK, HEAD_DIM, torch.float32).dims, generator=generator
        )
        self.pool = self.pool.bfloat16().to(pool_dtype)
        self.hidden = torch.randn(8, WIDTH, generator=generator).bfloat16().to(hidden_dtype)
        # Positions 6..12 of the first lie in blocks 1 and 6; 11 of the second in block 4.
        self.slots = torch.tensor([1 * 5 + 1, 1 * 5 + 2, 1 * 5 + 3, 1 * 5 + 4, 6 * 5, 6 * 5 + 1, 6 * 5 + 2, 4 * 5 + 1])
        angles = torch.rand(2, 8, HEAD_DIM // 2, generator=generator) * 6
        self.rotations = [(angle.cos(), angle.sin()) for angle in angles]

    def run(self, backend: object, stack: DecoderStack) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden, pool = self.hidden.clone(), self.pool.clone()
        self.batch.step_cache.clear()
        delta = backend.decoder_layers(stack, hidden, self.rotations, self.slots, self.batch, pool)  # type: ignore[attr-defined]
        return hidden, delta, pool


OPTIONS = ["bias", "head norms", "sandwich", "window", "soft cap"]
KINDS = [
    (torch.float32, torch.float32, torch.float32),
    (torch.float32, torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
]
"""Of activations, weights and pool."""


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(
    options=st.sets(st.sampled_from(OPTIONS)),
    activation=st.sampled_from(["silu", "gelu_tanh"]),
    kind=st.sampled_from(KINDS),
)
def test_one_call_gives_the_bits_of_its_operations(
    options: set[str], activation: str, kind: tuple[torch.dtype, torch.dtype, torch.dtype]
) -> None:
    activations, weight_dtype, pool_dtype = kind
    step, weights = Step(activations, pool_dtype), Weights(options, activation)
    stack = weights.stack(cpu, weight_dtype, activations)
    whole = step.run(cpu, stack)
    for ours, one_by_one in zip(whole, step.run(reference, stack), strict=True):
        assert torch.equal(ours, one_by_one)
    # Errors of three layers add up: 1e-5 and 1e-2 are the bounds of one operation.
    bound = 3e-5 if activations == weight_dtype == torch.float32 else 5e-2 if activations == torch.bfloat16 else 1e-2
    exact_step = Step(torch.float64, torch.float64)
    exact = exact_step.run(reference, weights.stack(reference, torch.float64, torch.float64))
    for ours, right in zip(whole, exact, strict=True):
        assert relative_error(ours, right) < bound


@pytest.mark.unit
def test_the_library_itself_runs_the_layers(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """The reference is taken away: what is computed must come from the library, on one thread and on two alike."""
    step, weights = Step(torch.float32, torch.float32), Weights(set(OPTIONS), "silu")
    stack = weights.stack(cpu, torch.float32, torch.float32)
    expected = step.run(reference, stack)
    monkeypatch.delattr(reference, "decoder_layers")
    for ours, right in zip(step.run(cpu, stack), expected, strict=True):
        assert torch.equal(ours, right)


@pytest.mark.unit
def test_a_feed_forward_of_the_models_own_is_called() -> None:
    step, weights = Step(torch.float32, torch.float32), Weights(set(), "silu")
    stack = weights.stack(cpu, torch.float32, torch.float32)
    plain = step.run(cpu, stack)
    middle = stack.layers[1]
    gate_up, down = middle.ffn  # type: ignore[misc]
    own = replace(middle, ffn=lambda normed: cpu.linear(cpu.linear(normed, gate_up), down))
    other = replace(stack, layers=(stack.layers[0], own, stack.layers[2]), prepared={})
    for ours, right in zip(step.run(cpu, other), plain, strict=True):
        assert torch.equal(ours, right)


@pytest.mark.unit
def test_indices_outside_the_pool_are_refused() -> None:
    step, weights = Step(torch.float32, torch.float32), Weights(set(), "silu")
    stack = weights.stack(cpu, torch.float32, torch.float32)
    slots = step.slots.clone()
    step.slots = torch.full_like(slots, 7 * BLOCK)
    with pytest.raises(IndexError):
        step.run(cpu, stack)
    step.slots = slots
    step.batch = RaggedBatch.of([7, 1], [13, 12], [[3, 1, 7], [2, 5, 4]])
    with pytest.raises(IndexError):
        step.run(cpu, stack)


@pytest.mark.unit
def test_layers_that_do_not_fit_are_refused() -> None:
    step, weights = Step(torch.float32, torch.float32), Weights(set(), "silu")
    stack = weights.stack(cpu, torch.float32, torch.float32)
    narrow = replace(stack.layers[0], attention_out=cpu.pack_linear(torch.randn(WIDTH - 1, HEADS * HEAD_DIM)))
    with pytest.raises(
        ValueError, match="layer 0: attention_out makes 39 of 64, in a layer of 40 it must make 40 of 64"
    ):
        step.run(cpu, replace(stack, layers=(narrow,), prepared={}))
    step.rotations = [(cosine[:5], sine[:5]) for cosine, sine in step.rotations]
    with pytest.raises(ValueError, match="cosine"):
        step.run(kernels, stack)
    step.slots = step.slots[:7]
    with pytest.raises(ValueError, match="must both be"):
        step.run(kernels, stack)


VOCABULARY, LENGTH = 50, 16
POSITIONS = torch.tensor([6, 7, 8, 9, 10, 11, 12, 11])


def ends_of(backend: object, weights: Weights, weight_dtype: torch.dtype, activations: torch.dtype) -> DecoderEnds:
    """Embedding, norm and output, drawn behind the layers; embeddings are multiplied where the options say so."""
    table, output = weights.draw(VOCABULARY, WIDTH), weights.draw(VOCABULARY, WIDTH)
    return DecoderEnds(
        backend.pack_linear(table.to(weight_dtype), None),  # type: ignore[attr-defined]
        weights.draw(WIDTH).to(activations),
        backend.pack_linear(output.to(weight_dtype), None),  # type: ignore[attr-defined]
        3.0 if "sandwich" in weights.options else 1.0,
    )


def run_model(
    backend: object, step: Step, ends: DecoderEnds, stack: DecoderStack, logits_at: Any, **changed: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and the pool as it is left."""
    angles = torch.rand(2, LENGTH, HEAD_DIM // 2, generator=torch.Generator().manual_seed(9)) * 6
    pool = step.pool.clone()
    step.batch.step_cache.clear()
    given = {
        "token_ids": torch.arange(8) * 6,
        "positions": POSITIONS,
        "rotations": [(angle.cos(), angle.sin()) for angle in angles],
        "slots": step.slots,
        "batch": step.batch,
        "pool": pool,
        "logits_at": torch.tensor(logits_at, dtype=torch.int64) if isinstance(logits_at, list) else logits_at,
    } | changed
    return backend.decoder_logits(ends, stack, **given), pool  # type: ignore[attr-defined]


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(
    options=st.sets(st.sampled_from(OPTIONS)),
    kind=st.sampled_from(KINDS),
    logits_at=st.none() | st.just([]) | st.lists(st.integers(0, 7), max_size=9),
)
def test_a_model_in_one_call_gives_the_bits_of_its_operations(
    options: set[str], kind: tuple[torch.dtype, torch.dtype, torch.dtype], logits_at: list[int] | None
) -> None:
    activations, weight_dtype, pool_dtype = kind
    step, weights = Step(activations, pool_dtype), Weights(options, "silu")
    stack = weights.stack(cpu, weight_dtype, activations)
    ends = ends_of(cpu, weights, weight_dtype, activations)
    logits, pool = run_model(kernels, step, ends, stack, logits_at)
    assert logits.shape == (8 if logits_at is None else len(logits_at), VOCABULARY)
    expected, pool_after = run_model(reference, step, ends, stack, logits_at)
    assert torch.equal(logits, expected)
    assert torch.equal(pool, pool_after)  # also when no logits are wanted, as of most chunks of a prompt


@pytest.mark.unit
def test_the_library_itself_runs_the_model(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    step, weights = Step(torch.float32, torch.float32), Weights({"sandwich"}, "silu")
    stack = weights.stack(cpu, torch.float32, torch.float32)
    ends = ends_of(cpu, weights, torch.float32, torch.float32)
    expected, _ = run_model(reference, step, ends, stack, [7, 0])
    monkeypatch.delattr(reference, "decoder_logits")
    logits, _ = run_model(cpu, step, ends, stack, [7, 0])
    assert torch.equal(logits, expected)


REFUSED_OF_A_MODEL = {
    "token id": ({"token_ids": torch.full((8,), VOCABULARY)}, IndexError, r"a token id outside 0\.\.49"),
    "position": ({"positions": POSITIONS + 4}, IndexError, r"a position outside 0\.\.15"),
    "position below": ({"positions": POSITIONS - 7}, IndexError, "position"),
    "row": ({"logits_at": torch.tensor([8])}, IndexError, "row of logits"),
    "slot": ({"slots": torch.full((8,), 7 * BLOCK)}, IndexError, "slot"),
    "block": ({"batch": RaggedBatch.of([7, 1], [13, 12], [[3, 1, 7], [2, 5, 4]])}, IndexError, "block"),
    "fewer positions": ({"positions": POSITIONS[:7]}, ValueError, r"positions must be int64 \[8\]"),
    "short slots": ({"slots": torch.zeros(8, dtype=torch.int32)}, ValueError, r"slots must be int64 \[8\]"),
    "short rows": ({"logits_at": torch.zeros(1, dtype=torch.int32)}, ValueError, "logits_at must be int64"),
    "floats": ({"token_ids": torch.zeros(8)}, ValueError, "token_ids must be int64"),
    "fewer tokens than the batch": (
        {name: torch.zeros(7, dtype=torch.int64) for name in ("token_ids", "positions", "slots")},
        ValueError,
        "7 token ids for a batch of 8 tokens",
    ),
    "no rotation": ({"rotations": []}, ValueError, "the layers name 2 rotations, 0 are given"),
    "halves": (
        {"rotations": [(torch.ones(LENGTH, 8), torch.ones(LENGTH, 8).half())] * 2},
        ValueError,
        "must both be float32",
    ),
    "too wide": ({"rotations": [(torch.ones(LENGTH, 9), torch.ones(LENGTH, 9))] * 2}, ValueError, "half at most 8"),
    "pool": ({"pool": torch.zeros(7, 2, 2, KV_HEADS, BLOCK, HEAD_DIM)}, ValueError, "does not fit a pool of 2"),
}


@pytest.mark.unit
@pytest.mark.parametrize("name", REFUSED_OF_A_MODEL)
def test_a_model_refuses_what_does_not_fit(name: str) -> None:
    changed, error, message = REFUSED_OF_A_MODEL[name]
    step, weights = Step(torch.float32, torch.float32), Weights(set(), "silu")
    stack = weights.stack(cpu, torch.float32, torch.float32)
    ends = ends_of(cpu, weights, torch.float32, torch.float32)
    run_model(kernels, step, ends, stack, None)  # what is right before is taken, and remembered as fitting
    with pytest.raises(error, match=message):
        run_model(kernels, step, ends, stack, **({"logits_at": None} | changed))


@pytest.mark.unit
def test_a_model_of_other_ends_is_checked_anew() -> None:
    step, weights = Step(torch.float32, torch.float32), Weights(set(), "silu")
    stack = weights.stack(cpu, torch.float32, torch.float32)
    ends = ends_of(cpu, weights, torch.float32, torch.float32)
    run_model(kernels, step, ends, stack, None)
    with pytest.raises(ValueError, match="norm must be"):
        run_model(kernels, step, replace(ends, norm=ends.norm[:-1]), stack, None)
    with pytest.raises(ValueError, match="output must be weights of width 40"):
        run_model(kernels, step, replace(ends, output=cpu.pack_linear(torch.ones(50, 41))), stack, None)
