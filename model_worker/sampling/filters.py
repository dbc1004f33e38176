"""Which tokens stay in the draw: top-k, top-p, min-p and typical-p for all rows at once.

The order is that of transformers, each filter on what the one before left, renormalised. The first three keep a prefix
of the tokens sorted by logit, so together they are one threshold per row; typical-p keeps those whose surprise lies
nearest to the entropy.

Sorting a vocabulary would cost more than the rest of the sampler, so it is cut down first, by a floor below which no
token can be kept:

    top-k       the k-th largest logit
    top-p       probability (1 - top_p) / vocab: all tokens below it have less than 1 - top_p together
    min-p       min_p times the largest probability
    typical-p   the tokens above (1 - typical_p) / vocab have at least typical_p together, so none stays whose surprise
                is farther from the entropy H than the farthest of theirs: the floor is the smaller one of that
                probability and exp(-2 H) / (largest probability)

Weights are exp((logit - largest logit) / temperature), in float64 once there are few.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import top_k
from model_worker.sampling.params import SamplingParams
from model_worker.sampling.rows import ascending, flat_indices, largest, row_sums, some

# Floors rest on sums of float32; one a little too low only keeps a candidate more.
_SLACK = 1e-4
# Up to so many candidates of a row are found faster by insertion than by a pass with a floor and one that gathers.
_FEW = 128
# Taken beyond the k-th, so that a few as large as it are seen; logits of bfloat16 weights often are.
_SPARE = 8
# exp() of less is zero in float32, and zero times it is still zero.
_LOWEST = -200.0


@dataclass(frozen=True, slots=True)
class Columns:
    """The parameters of a batch, float64 ``[rows, 1]`` but for ``top_k``, which is int64; neutral where not asked for.

    Attributes:
        highest: the largest logit of each row.
        top_k: the size of the vocabulary where there is no limit.
    """

    highest: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    typical_p: Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], highest: Tensor, vocab: int) -> "Columns":
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=highest.device).unsqueeze(1)

        return cls(
            highest.double(),
            column([one.temperature for one in params]),
            torch.tensor([min(one.top_k or vocab, vocab) for one in params], device=highest.device).unsqueeze(1),
            column([one.top_p for one in params]),
            column([one.min_p for one in params]),
            column([one.typical_p for one in params]),
        )

    def weights(self, logits: Tensor) -> Tensor:
        """float64, of some of each row's logits; 1 for the largest logit, 0 for -inf."""
        return torch.exp((logits.double() - self.highest) / self.temperature)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that stay, in the order of their ids.

    Attributes:
        ids: int64 ``[rows, width]``; arbitrary where the weight is zero.
        weights: float64 ``[rows, width]``, not normalised; zero for tokens dropped and past a row's last one.
    """

    ids: Tensor
    weights: Tensor


def keep(logits: Tensor, columns: Columns) -> Candidates:
    """Filter the rows of ``logits``, float32 ``[rows, vocab]``."""
    limited = columns.top_k < logits.shape[-1]
    mass, entropy = _whole(logits, columns, ~limited & ((columns.top_p < 1.0) | (columns.typical_p < 1.0)))
    kept, ids = _few(logits, columns) or _not_below(logits, _floor(logits, columns, limited, mass, entropy))
    ordered = largest(kept, kept.shape[-1])
    kth = ordered.gather(1, columns.top_k.clamp(max=ordered.shape[-1]) - 1)
    weights = torch.where(limited & (ordered < kth), 0.0, columns.weights(ordered))
    cumulative = torch.cumsum(weights, dim=-1)
    left = torch.where(limited, cumulative[:, -1:], mass)
    # A token stays while the tokens before it have not reached top_p; so the first one always stays.
    stays = (cumulative - weights < columns.top_p * left) | (columns.top_p >= 1.0)
    stays &= (weights >= columns.min_p) & (weights > 0.0)
    chosen = torch.where(_first(kept, ordered, stays.sum(dim=-1, keepdim=True)), columns.weights(kept), 0.0)
    if bool((columns.typical_p < 1.0).any()):
        # A row that only typical-p filters has its mass and entropy from all tokens, not from what the floor left.
        alone = (columns.top_p >= 1.0) & (columns.min_p == 0.0) & ~limited
        shares = chosen / torch.where(alone, mass, chosen.sum(dim=-1, keepdim=True))
        entropy = torch.where(alone, entropy, torch.special.entr(shares).sum(dim=-1, keepdim=True))
        chosen = torch.where(_typical(shares, entropy, columns.typical_p), chosen, 0.0)
    return Candidates(ids, chosen)


def _whole(logits: Tensor, columns: Columns, needed: Tensor) -> tuple[Tensor, Tensor]:
    """The weight of all tokens together and the entropy in nats, ``[rows, 1]``; zero where not needed."""
    mass, entropy = torch.zeros_like(columns.highest), torch.zeros_like(columns.highest)
    if not bool(needed.any()):
        return mass, entropy
    rows = needed.squeeze(1)
    scaled = (some(logits, rows) - columns.highest[rows].float()).div_(columns.temperature[rows].float())
    weights = torch.exp(scaled)
    mass[rows] = row_sums(weights)
    if bool((columns.typical_p < 1.0).any()):
        entropy[rows] = torch.log(mass[rows]) - row_sums(weights.mul_(scaled.clamp_(min=_LOWEST))) / mass[rows]
    return mass, entropy


def _floor(logits: Tensor, columns: Columns, limited: Tensor, mass: Tensor, entropy: Tensor) -> Tensor:
    """float32 ``[rows, 1]``: tokens of a smaller logit are dropped for certain."""
    vocab = logits.shape[-1]
    prefix = torch.maximum(columns.min_p, mass * (1.0 - columns.top_p) / vocab)
    untypical = torch.minimum(mass * (1.0 - columns.typical_p) / vocab, (mass * torch.exp(-entropy)) ** 2)
    weight = torch.where(prefix > 0.0, prefix, untypical)
    floor = columns.highest + columns.temperature * (torch.log(weight) - _SLACK)
    floor = torch.nextafter(floor.float(), torch.full_like(floor, -torch.inf, dtype=torch.float32))
    if bool(limited.any()):
        # With top-k the other filters see what it leaves, renormalised: their floors do not hold.
        rows = limited.squeeze(1)
        count = columns.top_k[rows]
        floor[rows] = largest(some(logits, rows), int(count.max())).gather(1, count - 1)
    return floor.clamp(min=torch.finfo(torch.float32).min)  # tokens that are ruled out are below any floor


def _few(logits: Tensor, columns: Columns) -> tuple[Tensor, Tensor] | None:
    """What ``_not_below`` gives, and some tokens more, when top-k leaves few in every row; None when it does not."""
    count = int(columns.top_k.max()) + _SPARE
    if count > min(_FEW, logits.shape[-1]):
        return None
    best, ids = top_k(logits, count)
    kth = best.gather(1, columns.top_k - 1)
    if bool(((best[:, -1:] == kth) & (kth > -torch.inf)).any()):
        return None  # there may be more that are as large as the k-th
    ids, order = torch.sort(ids, dim=-1)
    return best.gather(1, order), ids


def _not_below(logits: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """The logits not below the floor and their ids, in the order of ids: ``[rows, most of any row]``, -inf after."""
    rows, vocab = logits.shape
    flat = flat_indices(logits >= floor)
    row = flat // vocab
    counts = torch.bincount(row, minlength=rows)
    places = torch.arange(flat.numel(), device=flat.device) - (torch.cumsum(counts, 0) - counts)[row]
    width = int(counts.max())
    kept = logits.new_full((rows, width), -torch.inf)
    ids = torch.zeros(rows, width, dtype=torch.int64, device=flat.device)
    kept[row, places] = logits.view(-1)[flat]
    ids[row, places] = flat - row * vocab
    return kept, ids


def _first(values: Tensor, ordered: Tensor, count: Tensor) -> Tensor:
    """A mask of the ``count`` largest of each row; of equal ones those with the smallest ids."""
    last = ordered.gather(1, count - 1)
    above, tied = values > last, values == last
    ties_kept = count - above.sum(dim=-1, keepdim=True)
    if bool((tied.sum(dim=-1, keepdim=True) > ties_kept).any()):
        tied &= torch.cumsum(tied, dim=-1) <= ties_kept
    return above | tied


def _typical(shares: Tensor, entropy: Tensor, typical_p: Tensor) -> Tensor:
    """What typical-p keeps (Meister et al., Locally Typical Sampling, 2022): a mask like ``shares``."""
    distance = (-torch.log(shares) - entropy).abs()
    nearest, order = ascending(distance)
    before = torch.cumsum(shares.gather(1, order), dim=-1) < typical_p
    # The token that reaches typical_p stays, and those as near as it.
    last = before.sum(dim=-1, keepdim=True).clamp(max=shares.shape[-1] - 1)
    return (distance <= nearest.gather(1, last)) | (typical_p >= 1.0)
