"""Rotary frequencies and magnitudes of every scaling against transformers' own, values first, then logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_checkpoints import tiny_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model_worker.model import CheckpointError, load_model, read_config
from model_worker.model.rope import inverse_frequencies
from model_worker.model.rope_config import Contexts, read_rope

pytestmark = pytest.mark.model

HEAD_DIM, MADE_FOR, ORIGINAL = 32, 256, 64
FACTORS = {
    "short_factor": [round(1.0 + 0.05 * index, 2) for index in range(16)],
    "long_factor": [round(1.0 + 0.7 * index, 2) for index in range(16)],
}
LOW_HIGH = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": ORIGINAL, **LOW_HIGH},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn with betas": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "attention_factor": 1.3,
    },
    "yarn of DeepSeek": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": ORIGINAL, **FACTORS},
    "longrope with a factor": {
        "rope_type": "longrope",
        "factor": 3.0,
        "original_max_position_embeddings": ORIGINAL,
        **FACTORS,
    },
}
SERVED = {"dynamic": (100, 256, 400), "longrope": (64, 65, 256)}


def hf_config(scaling: dict[str, Any]) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=HEAD_DIM,
        max_position_embeddings=MADE_FOR,
        rope_parameters={"rope_theta": 10000.0, **scaling},
    )


@pytest.mark.parametrize("scaling", SCALINGS)
def test_values_equal_transformers(scaling: str) -> None:
    """dynamic changes beyond the 256 positions the model was made for, longrope beyond the original 64."""
    given = SCALINGS[scaling]
    kind = given["rope_type"]
    for served in SERVED.get(kind, (MADE_FOR,)):
        expected, magnitude = ROPE_INIT_FUNCTIONS[kind](hf_config(given), None, seq_len=served)
        rope = read_rope({"rope_theta": 10000.0, **given}, {}, Contexts(MADE_FOR, served), HEAD_DIM)
        torch.testing.assert_close(inverse_frequencies(rope, HEAD_DIM), expected, rtol=1e-6, atol=0)
        assert rope.magnitude == pytest.approx(magnitude)


def test_only_the_first_dimensions_turn() -> None:
    """Three quarters of 32 dimensions are 24, in 12 pairs."""
    rope = read_rope({"rope_theta": 10000.0, "partial_rotary_factor": 0.75}, {}, Contexts(MADE_FOR, MADE_FOR), HEAD_DIM)
    assert inverse_frequencies(rope, HEAD_DIM).shape == (12,)
    assert float(inverse_frequencies(rope, HEAD_DIM)[1]) == pytest.approx(10000.0 ** (-2 / 24))


IDS = [(11 * index) % 190 + 3 for index in range(100)]


@pytest.mark.parametrize(
    ("scaling", "served"),
    [*((name, None) for name in SCALINGS if name != "dynamic"), ("dynamic", 100), ("longrope", 100), ("longrope", 64)],
)
def test_logits_equal_transformers(scaling: str, served: int | None, tmp_path: Path, paged_run: Any) -> None:
    """transformers goes by the length of the sequence at hand, so a prompt is as long as what is served: 100 tokens of
    a model made for 60, or up to longrope's original 64, or beyond it."""
    made_for = 60 if scaling == "dynamic" else MADE_FOR
    folder = tiny_checkpoint(
        "llama", tmp_path, max_position_embeddings=made_for, rope_parameters={"rope_theta": 1e4, **SCALINGS[scaling]}
    )
    ids = IDS[: served or 100]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
    loaded = load_model(folder, max_context=served)
    assert loaded.config.max_context == (served or made_for)
    actual = paged_run(loaded, [ids], 16).in_chunks([{0: 40}, {0: len(ids) - 40}])[0]
    assert (actual - expected).abs().max() < 1e-4
    unscaled = load_model(
        tiny_checkpoint("llama", tmp_path / "plain", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    )
    plain = paged_run(unscaled, [ids], 16).step({0: len(ids)})[0]
    assert (plain - expected).abs().max() > 1e-2


def test_what_is_served_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    """Keys rotated for one context are of no use in another: 64 positions have the short factors, 65 and 256 the long
    ones."""
    folder = tiny_checkpoint("llama", tmp_path, rope_parameters={"rope_theta": 1e4, **SCALINGS["longrope"]})
    short, longer, long = (load_model(folder, max_context=served).fingerprint for served in (64, 65, None))
    assert short != longer == long


def test_a_dynamic_embedding_stretches_by_its_factor(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", tmp_path, rope_parameters={"rope_theta": 1e4, **SCALINGS["dynamic"]})
    assert load_model(folder).config.max_context == 256
    assert load_model(folder, max_context=10_000).config.max_context == 512


def test_yarn_reaches_its_factor_times_the_original_context(tmp_path: Path) -> None:
    """Qwen's configurations leave max_position_embeddings at the original 64: 4 times that are served."""
    rope = {"rope_theta": 1e4, **SCALINGS["yarn"]}
    folder = tiny_checkpoint("llama", tmp_path, max_position_embeddings=ORIGINAL, rope_parameters=rope)
    assert [read_config(folder, served).max_context for served in (None, 100, 300)] == [256, 100, 256]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rope_type": "linear"}, "'linear' needs factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 16}, "'longrope' needs long_factor"),
        ({"rope_type": "longrope", "long_factor": [1.0] * 3, "short_factor": [1.0]}, "3 divisors for 16 frequencies"),
        ({"partial_rotary_factor": 2.0}, "64 rotary dimensions of 32"),
    ],
)
def test_what_is_missing_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_rope(given, {"original_max_position_embeddings": ORIGINAL}, Contexts(MADE_FOR, MADE_FOR), HEAD_DIM)
