"""Drawn lengths keep the published means, and the same seed draws the same ones."""

from statistics import mean

import pytest

from cli.simulate.lengths import ALPACA, SHAREGPT, Lengths
from cli.simulate.workload import drawn, faster

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("lengths", [SHAREGPT, ALPACA], ids=lambda lengths: lengths.name)
def test_means_are_the_published_ones_although_long_pairs_are_cut_off(lengths: Lengths) -> None:
    # The spread of a mean of 20,000: sigma 1 makes a standard deviation of 1.3 means, 1.3 / sqrt(20,000) is 0.9 %.
    pairs = lengths.draw(20_000, seed=3)
    assert mean(prompt for prompt, _ in pairs) == pytest.approx(lengths.mean_prompt, rel=0.03)
    assert mean(output for _, output in pairs) == pytest.approx(lengths.mean_output, rel=0.03)
    assert max(prompt + output for prompt, output in pairs) <= 2_048
    assert min(min(pair) for pair in pairs) >= 1


def test_a_seed_decides_everything() -> None:
    assert SHAREGPT.draw(50, seed=1) == SHAREGPT.draw(60, seed=1)[:50]
    assert SHAREGPT.draw(50, seed=1) != SHAREGPT.draw(50, seed=2)


def test_arrivals_are_a_poisson_process_of_the_rate_or_all_at_once() -> None:
    assert {request.arrival for request in drawn(ALPACA, 100, 0, seed=1)} == {0.0}
    paced = drawn(ALPACA, 10_000, 4.0, seed=1)
    arrivals = [request.arrival for request in paced]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(10_000 / 4, rel=0.05)
    assert faster(paced, 2)[-1].arrival == arrivals[-1] / 2
    assert faster(paced, 2)[-1].prompt_tokens == paced[-1].prompt_tokens
