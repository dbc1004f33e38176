"""What weights of fewer bits cost the demo model: next tokens and perplexity over a page of this repository."""

from pathlib import Path

import pytest
import tokenizers
import torch
from torch.nn import functional

from kernels import PoolShape, RaggedBatch, allocate_pool
from model_worker.model import load_model
from model_worker.model.errors import UnsupportedModelError

pytestmark = [pytest.mark.model]

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"
TOKENS = 400
BLOCK = 16


BOUNDS: list[tuple[dict[str, object], float, float]] = [
    ({"dtype": torch.bfloat16}, 0.002, 0.98),
    ({"quantization": "int8"}, 0.01, 0.90),
    ({"quantization": "int4"}, 0.02, 0.92),
]
"""Measured here: perplexity x 1.0001, 1.0006 and 0.9961; 100, 94 and 96 % of next tokens the same.

The demo model's matrices were once stored in groups of 32 and four bits, so int4 finds them nearly again: other models
lose more by it (`test_what_quantisation_costs` has 8 % of a product with normal weights) and less by int8.
"""


def next_token_logits(folder: Path, ids: list[int], **options: object) -> torch.Tensor:
    """float32 [tokens, vocab], the page in one chunk."""
    loaded = load_model(folder, **options)  # type: ignore[arg-type]
    config, blocks = loaded.config, -(-len(ids) // BLOCK)
    shape = PoolShape(blocks, config.num_layers, config.num_kv_heads, BLOCK, config.head_dim, loaded.dtype)
    positions = torch.arange(len(ids))
    return loaded.model.forward(
        torch.tensor(ids),
        positions,
        positions + BLOCK,
        RaggedBatch.of([len(ids)], [len(ids)], [list(range(1, blocks + 1))]),
        allocate_pool(shape),
        positions,
    )


def perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    return float(functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).exp())


def test_next_tokens_and_perplexity_on_a_page(demo_model: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    ids = tokenizer.encode(PAGE.read_text()).ids[:TOKENS]
    plain = next_token_logits(demo_model, ids)
    for options, worse, agreeing in BOUNDS:
        rounded = next_token_logits(demo_model, ids, **options)
        ratio = perplexity(rounded, ids) / perplexity(plain, ids)
        same = float((rounded.argmax(-1) == plain.argmax(-1)).float().mean())
        assert 1 - worse < ratio < 1 + worse, options
        assert same > agreeing, options


def test_what_cannot_be_rounded_is_refused(demo_model: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="int8 weights are supported on CPU beside float32 or bfloat16"):
        load_model(demo_model, torch.float16, quantization="int8")


def test_rounded_weights_have_a_fingerprint_of_their_own(demo_model: Path) -> None:
    """Their KV differs: blocks must not be shared with a worker that has other weights."""
    prints = {load_model(demo_model, quantization=kind).fingerprint for kind in (None, "int8", "int4")}  # type: ignore[arg-type]
    assert len(prints) == 3
