"""The numbers that are drawn and what is made of them, against float64 references."""

import numpy as np
import pytest
import torch
from sampling_reference import distribution
from torch import Tensor

from model_worker.sampling import filters
from model_worker.sampling.draw import draw, draw_from_vocabulary
from model_worker.sampling.params import SamplingParams
from model_worker.sampling.philox import uniforms

pytestmark = pytest.mark.model

# Chosen before any was tried.
SEEDS = [20_261_129 + 1_000_003 * number for number in range(20)]
DRAWS = 60_000
LOGITS = torch.tensor([3.0, 2.6, 2.5, 1.9, 1.2, 1.0, 0.4, -0.3, -1.1, -1.7, -2.2, -3.0])

SAMPLERS = {
    "temperature": SamplingParams(0.9),
    "top-k": SamplingParams(1.2, top_k=5),
    "top-p": SamplingParams(1.0, top_p=0.8),
    "min-p": SamplingParams(1.0, min_p=0.1),
    "typical-p": SamplingParams(1.0, typical_p=0.6),
    "all together": SamplingParams(1.5, top_k=9, top_p=0.93, min_p=0.06, typical_p=0.85),
}


def counts(params: SamplingParams, seed: int) -> Tensor:
    """How often each token was drawn at positions 0 to 59,999 of one sample."""
    numbers = torch.from_numpy(uniforms([seed] * DRAWS, [0] * DRAWS, range(DRAWS)))
    logits = LOGITS.unsqueeze(0)
    kept = filters.keep(logits, filters.Columns.of([params], logits.amax(dim=-1, keepdim=True), len(LOGITS)))
    drawn = kept.ids[0, draw(kept.weights.expand(DRAWS, -1), numbers)]
    return torch.bincount(drawn, minlength=len(LOGITS))


def p_value(seen: Tensor, expected: Tensor) -> float:
    """Of Pearson's chi-squared test; a token of probability zero must not have been seen."""
    possible = expected > 0
    assert int(seen[~possible].sum()) == 0
    mean = expected[possible] * seen.sum()
    statistic = ((seen[possible] - mean) ** 2 / mean).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def holm(p_values: list[float]) -> float:
    """The smallest p-value after Holm's correction for their number."""
    return min(1.0, len(p_values) * min(p_values))


@pytest.mark.unit
@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_follow_the_distribution(name: str) -> None:
    params = SAMPLERS[name]
    expected = distribution(LOGITS, params)
    # 5 % less of the most likely token, which has 0.25 to 0.45, and the others in proportion: with 60,000 draws the
    # statistic's noncentrality is 60,000 * (0.05 p)^2 / (p (1 - p)), that is 50 to 120.
    moved = expected.clone()
    moved[expected.argmax()] *= 0.95
    moved /= moved.sum()
    seen = [counts(params, seed) for seed in SEEDS]
    assert holm([p_value(one, expected) for one in seen]) > 0.001
    assert holm([p_value(one, moved) for one in seen]) < 0.001


@pytest.mark.unit
def test_numbers_depend_on_seed_index_and_position_alone() -> None:
    # Philox 4x64-10 with key (7, 0) and counter (4, 0, 0, 0): fixed for all time, or resumed generations would change.
    assert uniforms([7], [0], [3]).tolist() == [0.44205212947108785]
    numbers = uniforms([7, 7, 7, 7, 8, 8, 8, 8], [0, 0, 1, 1] * 2, [3, 4] * 4)
    assert len(set(numbers.tolist())) == 8
    assert uniforms([8, 7], [1, 0], [4, 3]).tolist() == [numbers[7], numbers[0]]


@pytest.mark.unit
def test_numbers_are_those_of_numpys_generator() -> None:
    words = np.random.default_rng(3).integers(0, 2**64, (40, 3), dtype=np.uint64)
    words[0] = 2**64 - 1, 2**64 - 1, 2**64 - 2  # every half carries; numpy's counter would go on into its next word
    words[1] = 0
    for seed, index, position in words.tolist():
        key = np.array([seed, index], dtype=np.uint64)
        theirs = np.random.Philox(key=key, counter=np.array([position, 0, 0, 0], dtype=np.uint64))
        assert uniforms([seed], [index], [position])[0] == float(int(theirs.random_raw()) >> 11) * 2.0**-53


@pytest.mark.unit
@pytest.mark.parametrize("width", [1, 2, 255, 256, 257, 1_000])
def test_both_ways_to_draw_give_the_first_token_above_the_number(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    weights = torch.randint(0, 3, (50, width), generator=generator).float()
    weights[:, width // 2] = 1.0  # never all zero
    numbers = torch.rand(50, generator=generator, dtype=torch.float64)
    numbers[:2] = torch.tensor([0.0, 0.999_999])
    drawn, drawn_wide = draw(weights, numbers), draw_from_vocabulary(weights, numbers)
    for row in range(50):
        # Whole weights: all sums are exact.
        target = float(numbers[row]) * float(weights[row].sum())
        token = next(column for column in range(width) if float(weights[row, : column + 1].sum()) > target)
        assert int(drawn[row]) == token
        assert int(drawn_wide[row]) == token


@pytest.mark.unit
def test_rounding_never_draws_a_token_without_weight() -> None:
    # Ten times 0.1 is less than 1 in floating point, so a number just below 1 lies behind the last sum.
    weights = torch.tensor([[0.1] * 10 + [0.0] * 500])
    last = torch.tensor([1.0 - 2.0**-53], dtype=torch.float64)
    assert int(draw(weights, last)) == 9
    assert int(draw_from_vocabulary(weights, last)) == 9
