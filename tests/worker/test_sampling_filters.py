"""Which tokens the filters keep, against transformers' warpers in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import distribution
from torch import Tensor

from model_worker.sampling import filters
from model_worker.sampling.params import SamplingParams

pytestmark = pytest.mark.model


def kept(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """Our distributions, float64 like ``logits``."""
    vocab = logits.shape[-1]
    columns = filters.Columns.of(params, logits.amax(dim=-1, keepdim=True), vocab)
    left = filters.keep(logits, columns)
    shares = left.weights / left.weights.sum(dim=-1, keepdim=True)
    # Padding adds zero to token 0.
    return torch.zeros(logits.shape, dtype=torch.float64).scatter_add_(1, left.ids, shares)


# Distinct logits with gaps: at a tie or at the very edge of top-p, rounding decides and both answers are right.
gapped = st.lists(st.integers(-60, 60), min_size=12, max_size=12, unique=True).map(
    lambda values: [value / 7 for value in values]
)
asked = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 5),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 11, 12, 40]),
    top_p=st.sampled_from([0.013, 0.21, 0.51, 0.97, 0.9999, 1.0, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.0113, 0.31, 1.0]),
    typical_p=st.sampled_from([0.0171, 0.23, 0.89, 0.9997, 1.0, 1.0]),
)


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(gapped, asked), min_size=1, max_size=5))
def test_every_row_of_a_batch_keeps_what_transformers_keeps(rows: list[tuple[list[float], SamplingParams]]) -> None:
    logits = torch.tensor([values for values, _ in rows])
    ours = kept(logits, [params for _, params in rows])
    for place, (_, params) in enumerate(rows):
        theirs = distribution(logits[place], params)
        assert torch.equal(ours[place] > 0, theirs > 0), params
        assert torch.allclose(ours[place], theirs, rtol=1e-5, atol=0)


@pytest.mark.unit
@pytest.mark.parametrize("spread", [0.05, 1.0, 3.0, 9.0], ids="spread {}".format)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(0.8, top_k=50),
        SamplingParams(1.3, top_k=700, top_p=0.9),
        SamplingParams(1.0, top_p=0.95),
        SamplingParams(0.7, min_p=0.05),
        SamplingParams(1.0, typical_p=0.9),
        SamplingParams(1.0, typical_p=0.05),
        SamplingParams(1.1, top_k=300, top_p=0.98, min_p=0.001, typical_p=0.8),
    ],
    ids=str,
)
def test_a_large_vocabulary_is_filtered_like_a_small_one(spread: float, params: SamplingParams) -> None:
    # 5,003 is prime, so no block of 256 fits. Flat rows have all tokens above every floor, steep ones a handful.
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 5_003, generator=generator) * spread
    ours = kept(logits, [params] * 3)
    for row in range(3):
        theirs = distribution(logits[row], params)
        # Among 5,003 tokens one may lie at an edge, where float32 sums and float64 sums decide differently.
        assert int(((ours[row] > 0) != (theirs > 0)).sum()) <= 1
        assert float((ours[row] - theirs).abs().sum()) < 2e-3


@pytest.mark.unit
def test_ties_at_the_kth_token_all_stay() -> None:
    # As transformers does: 200 equal tokens and top-k 3. Also when more tie than the quick way looks at.
    logits = torch.zeros(1, 300)
    logits[0, 50:250] = 2.0
    shares = kept(logits, [SamplingParams(top_k=3)])
    assert int((shares > 0).sum()) == 200
    assert torch.equal(shares > 0, logits.double() > 0)


@pytest.mark.unit
def test_of_tied_tokens_at_the_edge_of_top_p_the_first_ids_stay() -> None:
    # Probabilities 1/2 and four times 1/8: 0.7 is reached by the first and two of the four.
    logits = torch.log(torch.tensor([[0.125, 0.125, 0.5, 0.125, 0.125]]))
    assert kept(logits, [SamplingParams(top_p=0.7)])[0].tolist() == pytest.approx([1 / 6, 1 / 6, 4 / 6, 0, 0])


@pytest.mark.unit
@pytest.mark.parametrize("temperature", [1e-4, 2.0, 1e4])
def test_extreme_temperatures_and_logits_stay_finite(temperature: float) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0, -torch.inf]])
    for filtered in (SamplingParams(temperature, top_p=0.9), SamplingParams(temperature, typical_p=0.9)):
        shares = kept(logits, [filtered])
        assert torch.isfinite(shares).all()
        assert float(shares.sum()) == pytest.approx(1.0)
        assert shares[0, 3] == 0


@pytest.mark.unit
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=50),
        SamplingParams(top_k=200),
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.9),
        SamplingParams(typical_p=0.9),
        SamplingParams(),
    ],
    ids=str,
)
def test_tokens_that_are_ruled_out_are_no_candidates(params: SamplingParams) -> None:
    # As under a grammar: three tokens of 5,000 are open, fewer than k.
    logits = torch.full((2, 5_000), -torch.inf)
    logits[:, [7, 4_000, 4_999]] = torch.tensor([2.0, 1.0, 0.5])
    ours = kept(logits, [params] * 2)
    if params.typical_p == 1:  # transformers' own has a NaN there
        assert torch.allclose(ours[0], distribution(logits[0], params), rtol=1e-5, atol=0)
    assert set(ours[1].nonzero().squeeze(1).tolist()) <= {7, 4_000, 4_999}
    assert float(ours[1].sum()) == pytest.approx(1.0)
    columns = filters.Columns.of([params] * 2, logits.amax(dim=-1, keepdim=True), 5_000)
    assert filters.keep(logits, columns).ids.shape[-1] <= 60
