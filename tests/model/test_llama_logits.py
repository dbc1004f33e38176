"""Logits of the native forward pass against transformers' own, in fp32, on the same random-weight checkpoint."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from kernels import RaggedBatch
from model_worker.model import load_model

pytestmark = pytest.mark.model

BOUND = 1e-4
LENGTHS = (53, 17, 1, 30)
WHOLE = [dict(enumerate(LENGTHS))]
# Prefill chunks and decodes in one step, sequences coming and going: 0 gets 20+13+8*1+12, 1 gets 9+8*1, 3 gets 5+25.
MIXED = [{0: 20}, {0: 13, 1: 9}, {2: 1, 3: 5}, *[{1: 1, 0: 1}] * 8, {3: 25, 0: 12}]

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "head dim 80": {"head_dim": 80},
    "one KV head": {"num_key_value_heads": 1},
    "no sharing": {"num_key_value_heads": 6},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "large theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
}


def prompts() -> list[list[int]]:
    draw = random.Random(11)
    return [[draw.randrange(211) for _ in range(length)] for length in LENGTHS]


@torch.inference_mode()
def expected_logits(folder: Path) -> list[torch.Tensor]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return [model(torch.tensor([ids])).logits[0] for ids in prompts()]


def worst(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return max(float((mine - theirs).abs().max()) for mine, theirs in zip(actual, expected, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers(variant: str, make_llama: Any, paged_run: Any) -> None:
    folder = make_llama(**VARIANTS[variant])
    expected = expected_logits(folder)
    loaded = load_model(folder)
    for block_size in (16, 5):
        for schedule in (WHOLE, MIXED):
            assert worst(paged_run(loaded, prompts(), block_size).in_chunks(schedule), expected) < BOUND


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_half_precision_stays_near_fp32(dtype: torch.dtype, bound: float, make_llama: Any, paged_run: Any) -> None:
    """The difference over the spread of the logits; a bf16 significand has 8 bits, an fp16 one 11."""
    folder = make_llama()
    expected = expected_logits(folder)
    actual = paged_run(load_model(folder, dtype), prompts(), 16).in_chunks(MIXED)
    assert all(logits.dtype == torch.float32 for logits in actual)
    spread = max(float(logits.std()) for logits in expected)
    assert worst(actual, expected) / spread < bound * 4
    assert torch.cat(actual).sub(torch.cat(expected)).std() / spread < bound


def test_config_mutants_are_told_apart(make_llama: Any, paged_run: Any, tmp_path: Path) -> None:
    folder = make_llama()
    expected = expected_logits(folder)

    def mutated(**changes: Any) -> Path:
        mutant = shutil.copytree(folder, tmp_path / next(iter(changes)))
        config = json.loads((mutant / "config.json").read_text())
        (mutant / "config.json").write_text(json.dumps(config | changes))
        return mutant

    theta = {"rope_type": "default", "rope_theta": 10000.0 * 1.1}
    for mutant in (mutated(rope_parameters=theta), mutated(rms_norm_eps=1e-5 * 1000)):
        actual = paged_run(load_model(mutant), prompts(), 16).in_chunks(MIXED)
        assert worst(actual, expected) > 10 * BOUND


def test_a_swapped_kv_head_is_told_apart(make_llama: Any, paged_run: Any, tmp_path: Path) -> None:
    """K rows of the two heads of layer 1 change places: [head 0 (64 rows), head 1] -> [head 1, head 0]."""
    folder = make_llama()
    expected = expected_logits(folder)
    mutant = shutil.copytree(folder, tmp_path / "mutant")
    weights = load_file(mutant / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    weights[name] = torch.cat((weights[name][64:], weights[name][:64]))
    save_file(weights, mutant / "model.safetensors", metadata={"format": "pt"})
    assert worst(paged_run(load_model(mutant), prompts(), 16).in_chunks(MIXED), expected) > 10 * BOUND


def test_logits_only_where_asked(make_llama: Any, paged_run: Any) -> None:
    loaded = load_model(make_llama())
    everywhere = torch.cat(list(paged_run(loaded, prompts(), 16).step({0: 6, 1: 3}).values()))
    run = paged_run(loaded, prompts(), 16)
    rows = loaded.model.forward(*run.inputs({0: 6, 1: 3}), run.pool, torch.tensor([8, 5]))
    assert torch.allclose(rows, everywhere[[8, 5]], atol=1e-5)


def test_a_whole_prefix_hit_writes_nothing_and_gives_the_logits(make_llama: Any, paged_run: Any) -> None:
    """A prompt of 16 in one block, found whole: its last token runs again, K and V to the null block."""
    loaded = load_model(make_llama())
    ids = prompts()[0][:16]
    run = paged_run(loaded, [ids], 16)
    expected = run.step({0: 16})[0][-1]
    before = run.pool.clone()
    batch = RaggedBatch.of([1], [16], run.tables)
    inputs = (torch.tensor([ids[-1]]), torch.tensor([15]), torch.tensor([0]), batch)
    logits = loaded.model.forward(*inputs, run.pool, torch.tensor([0]))
    assert torch.allclose(logits[0], expected, atol=BOUND)
    assert torch.equal(run.pool[1:].nan_to_num(), before[1:].nan_to_num())
