"""Sampling against float64 references written with plain loops."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_worker.sampling.params import SamplingParams
from model_worker.sampling.sampler import draw, probabilities, sample, uniform


def reference(logits: list[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k, top-p, min-p, each on what the one before left, renormalised."""
    largest = max(logits)
    weights = [math.exp((value - largest) / params.temperature) for value in logits]
    weights = [weight / sum(weights) for weight in weights]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    kept = set(order)
    if params.top_k:
        # Equal to the k-th counts as kept, so that no tie is broken by the order of the vocabulary.
        threshold = weights[order[min(params.top_k, len(order)) - 1]]
        kept = {token for token in order if weights[token] >= threshold}
    total = sum(weights[token] for token in kept)
    weights = [weight / total if token in kept else 0.0 for token, weight in enumerate(weights)]
    if params.top_p < 1:
        before, allowed = 0.0, set()
        for token in sorted(kept, key=lambda token: (-weights[token], token)):
            if before >= params.top_p:
                break
            allowed.add(token)
            before += weights[token]
        kept = allowed
    largest = max(weights[token] for token in kept)
    kept = {token for token in kept if weights[token] >= params.min_p * largest}
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(weights))]


# Distinct logits with gaps: at a tie or at the very edge of top-p, float64 rounding decides and both answers are right.
gapped = st.lists(st.integers(-40, 40), min_size=1, max_size=30, unique=True).map(
    lambda values: [value / 7 for value in values]
)


@pytest.mark.property
@settings(max_examples=300, deadline=None)
@given(
    gapped,
    st.floats(0.1, 5),
    st.integers(0, 35),
    st.sampled_from([0.013, 0.2, 0.51, 0.97, 1.0]),
    st.sampled_from([0.0, 0.011, 0.3, 1.0]),
)
def test_filters_leave_the_reference_distribution(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature, top_k, top_p, min_p)
    ours = probabilities(torch.tensor(logits, dtype=torch.float64), params).tolist()
    assert ours == pytest.approx(reference(logits, params), rel=1e-9, abs=1e-12)


@pytest.mark.unit
def test_draws_follow_the_distribution() -> None:
    # 20,000 draws over 5 tokens; the chi-squared statistic with 4 degrees of freedom stays below 18.47 with probability
    # 0.999, and goes far beyond it when one probability is moved by 5 % of the whole.
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
    params = SamplingParams(temperature=0.9, seed=20_261_129)
    draws = 20_000
    seen = Counter(draw(logits, params, position) for position in range(draws))
    expected = reference(logits.tolist(), params)

    def chi_squared(weights: list[float]) -> float:
        return sum((seen[token] - draws * weight) ** 2 / (draws * weight) for token, weight in enumerate(weights))

    assert chi_squared(expected) < 18.47
    moved = [expected[0] - 0.05, expected[1] + 0.05, *expected[2:]]
    assert chi_squared(moved) > 18.47


@pytest.mark.unit
def test_numbers_depend_on_seed_index_and_position_alone() -> None:
    # Philox 4x64-10 with key (7, 0) and counter (3, 0, 0, 0): fixed for all time, or resumed generations would change.
    assert uniform(7, 0, 3) == 0.44205212947108785
    numbers = {uniform(seed, index, position) for seed in (7, 8) for index in (0, 1) for position in (3, 4)}
    assert len(numbers) == 8
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(2**64 - 1, 0, 0) != uniform(2**64 - 2, 0, 0)


@pytest.mark.unit
def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 500, generator=generator)
    params = [SamplingParams(0.8, top_k=50, top_p=0.9, min_p=0.01, seed=seed) for seed in range(6)]
    together = sample(logits.clone(), params, list(range(6)), [()] * 6)
    alone = [sample(logits[row : row + 1].clone(), [params[row]], [row], [()])[0] for row in range(6)]
    assert together == alone


@pytest.mark.unit
@pytest.mark.parametrize("temperature", [0.0, 1e-8, 9e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert sample(logits, [SamplingParams(temperature)], [0], [()]) == [1]


@pytest.mark.unit
@pytest.mark.parametrize("temperature", [1e-4, 2.0, 1e4])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    logits = torch.tensor([1e4, -1e4, 0.0])
    weights = probabilities(logits, SamplingParams(temperature))
    assert torch.isfinite(weights).all()
    assert float(weights.sum()) == pytest.approx(1.0)


@pytest.mark.unit
def test_a_banned_token_is_never_chosen() -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    assert sample(logits.clone(), [SamplingParams(0)], [0], [(1,)]) == [2]
    assert all(sample(logits.clone(), [SamplingParams(1.0, seed=seed)], [0], [(1,)]) != [1] for seed in range(50))
