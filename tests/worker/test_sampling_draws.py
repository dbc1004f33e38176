"""The numbers that are drawn, and the token that they mean."""

import numpy as np
import pytest
import torch
from torch import Tensor

from model_worker.sampling.draw import LEVELS, draw_from_few, draw_from_vocabulary
from model_worker.sampling.philox import uniforms

pytestmark = [pytest.mark.model, pytest.mark.unit]


def test_numbers_depend_on_seed_index_and_position_alone() -> None:
    # Philox 4x64-10 with key (7, 0) and counter (4, 0, 0, 0): fixed for all time, or resumed generations would change.
    fixed = [0.44205212947108785, 0.8445679063131062, 0.6363025248640954, 0.7690032429873319]
    assert uniforms([7], [0], [3]).tolist() == [fixed]
    numbers = uniforms([7, 7, 7, 7, 8, 8, 8, 8], [0, 0, 1, 1] * 2, [3, 4] * 4)
    assert len(set(numbers.flat)) == 8 * 4
    assert uniforms([8, 7], [1, 0], [4, 3]).tolist() == [numbers[7].tolist(), numbers[0].tolist()]


def test_numbers_are_those_of_numpys_generator() -> None:
    words = np.random.default_rng(3).integers(0, 2**64, (40, 3), dtype=np.uint64)
    words[0] = 2**64 - 1, 2**64 - 1, 2**64 - 2  # every half carries; numpy's counter would go on into its next word
    words[1] = 0
    for seed, index, position in words.tolist():
        key = np.array([seed, index], dtype=np.uint64)
        theirs = np.random.Philox(key=key, counter=np.array([position, 0, 0, 0], dtype=np.uint64)).random_raw(4)
        assert uniforms([seed], [index], [position])[0].tolist() == [
            float(int(word) >> 11) * 2.0**-53 for word in theirs
        ]


def naive(weights: list[int], numbers: list[float]) -> int:
    """The token by the definition: at each level the first group with more weight up to it than its number's share."""
    begin, end = 0, 32**LEVELS
    for level in reversed(range(LEVELS)):
        size = 32**level
        groups = [(start, sum(weights[start : start + size])) for start in range(begin, min(end, len(weights)), size)]
        target, up_to = numbers[level] * sum(weight for _, weight in groups), 0
        for start, weight in groups:
            up_to += weight
            if up_to > target:
                begin, end = start, start + size
                break
    return begin


@pytest.mark.parametrize("width", [1, 2, 31, 32, 33, 1_000, 1_024, 1_025, 33_000])
def test_both_ways_to_draw_give_the_token_of_the_definition(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    weights = torch.randint(0, 3, (30, width), generator=generator).float()
    weights[::2] *= torch.rand(15, width, generator=generator) < 8 / width  # few tokens: groups without any
    weights[:, width // 2] = 1.0  # never all zero
    numbers = torch.rand(30, LEVELS, generator=generator, dtype=torch.float64)
    numbers[:2] = torch.tensor([[0.0], [0.999_999]])
    drawn = draw_from_vocabulary(weights, numbers).tolist()
    # Whole weights: all sums are exact.
    assert drawn == [naive(weights[row].int().tolist(), numbers[row].tolist()) for row in range(30)]
    # Beside tokens without weight, whichever they are, as a batch has them where another row keeps more.
    ids = torch.arange(width).expand(30, -1)
    few, weighing = torch.cat([ids, ids.flip(1)], dim=1), torch.cat([weights, weights * 0], dim=1).double()
    assert draw_from_few(few, weighing, numbers, width).tolist() == drawn


def test_rounding_never_draws_a_token_without_weight() -> None:
    # Ten times 0.1 is less than 1 in floating point, so a number just below 1 lies behind the last sum.
    weights = torch.tensor([[0.1] * 10 + [0.0] * 500])
    last = torch.full((1, LEVELS), 1.0 - 2.0**-53, dtype=torch.float64)
    assert int(draw_from_vocabulary(weights, last)) == 9
    assert int(draw_from_few(torch.arange(510).unsqueeze(0), weights.double(), last, 510)) == 9


def flat(weights: Tensor, numbers: Tensor) -> Tensor:
    """The usual way: one number and one cumulative distribution."""
    cumulative = torch.cumsum(weights.double(), dim=-1)
    return (cumulative <= numbers[:, :1] * cumulative[:, -1:]).sum(dim=-1)


def test_few_draws_change_with_the_last_digits_of_logits() -> None:
    """Errors of a thousandth, as of 16-bit logits, change about 3 in a thousand draws from a flat distribution over
    32,768 tokens, and about 70 in a thousand of those by one cumulative distribution: its edge k moves by
    0.001 * sqrt(k * (V - k) / V) / V, on average 0.4 * 0.001 / sqrt(V), and there are V edges."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(1_000, 32_768, generator=generator) * 0.1
    again = logits + torch.randn(1_000, 32_768, generator=generator) * 0.001
    numbers = torch.rand(1_000, LEVELS, generator=generator, dtype=torch.float64)
    ours, usual = (
        int((way(logits.exp(), numbers) != way(again.exp(), numbers)).sum()) for way in (draw_from_vocabulary, flat)
    )
    print(f"of 1,000 draws {ours} changed, by one cumulative distribution {usual}")
    assert ours < 10 < 40 < usual
