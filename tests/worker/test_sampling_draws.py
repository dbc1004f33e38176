"""The numbers that are drawn, and the token that each of them means."""

import numpy as np
import pytest
import torch

from model_worker.sampling.draw import draw, draw_from_vocabulary
from model_worker.sampling.philox import uniforms

pytestmark = pytest.mark.model


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
