"""What the runs say: rates, paired ratios with bootstrap intervals, latencies, and the gate."""

import itertools
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RESAMPLES = 10_000
# At least so much faster than the fastest peer on each workload, and in the geometric mean over all.
EACH, MEAN = 1.05, 1.15


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of paired ratios and the bootstrap 95 % interval of that median."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def summarize(ratios: Sequence[float]) -> Ratio:
    """Of rate over rate, pair by pair."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    at = round(RESAMPLES * 0.025)
    return Ratio(statistics.median(ratios), medians[at], medians[-at - 1], len(ratios))


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds over all requests: to the first token, and from each token to the next of its request.

    The gaps are None where every request has one token.
    """

    first_p50: float
    first_p99: float
    gap_p50: float | None
    gap_p99: float | None


def latencies(arrivals: Sequence[Sequence[float]]) -> Latencies:
    """Of requests that all arrived at 0; ``arrivals`` says when each token of each came."""
    first = [times[0] for times in arrivals]
    gaps = [later - earlier for times in arrivals for earlier, later in itertools.pairwise(times)]
    return Latencies(
        percentile(first, 0.5),
        percentile(first, 0.99),
        percentile(gaps, 0.5) if gaps else None,
        percentile(gaps, 0.99) if gaps else None,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the gate."""

    what: str
    met: bool

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'FAILED'}  {self.what}"


def judge(fastest: dict[str, tuple[str, Ratio] | None], missing: dict[str, str], pairs: int) -> list[Verdict]:
    """The gate.

    Args:
        fastest: by workload, the fastest peer and ours over it; None where ours or every peer was not measured.
        missing: peers that were not measured, and why; each is a failed line.
        pairs: what a ratio takes to count.
    """
    verdicts = [Verdict(f"{name} is missing: {why}", met=False) for name, why in missing.items()]
    medians = []
    for workload, row in fastest.items():
        if row is None:
            verdicts.append(Verdict(f"{workload}: not measured", met=False))
            continue
        peer, found = row
        medians.append(found.median)
        met = found.pairs >= pairs and found.median >= EACH and found.low > 1.0
        told = f"{found} times {peer} in {found.pairs} pairs"
        verdicts.append(Verdict(f"{workload}: {told}; at least {EACH}, above 1, {pairs} pairs", met))
    if medians:
        mean = geometric_mean(medians)
        met = mean >= MEAN and len(medians) == len(fastest)
        verdicts.append(Verdict(f"geometric mean of {len(medians)}: {mean:.2f}; at least {MEAN}, of all", met))
    return verdicts
