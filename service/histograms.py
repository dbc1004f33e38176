"""A Prometheus histogram of durations, cheap enough for a hot path: one thread observes, others read."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily

# From a step of a tiny model to the longest wait in a queue.
SECONDS = (
    0.0001,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)


class Times:
    """Counts durations by bucket.

    Args:
        bounds: upper ends of the buckets in seconds, ascending; one without an end comes after them.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count a duration, ``count`` times."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self._sum += seconds * count

    def family(self, name: str, help_text: str) -> HistogramMetricFamily:
        """The histogram as Prometheus reads it, buckets cumulated; the sum may be one duration behind or ahead."""
        family = HistogramMetricFamily(name, help_text)
        self.add_to(family, ())
        return family

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add its series, of these label values, to a family that has some."""
        total, buckets = 0, []
        for label, count in zip([*map(str, self._bounds), "+Inf"], list(self._counts), strict=True):
            total += count
            buckets.append((label, float(total)))
        family.add_metric(labels, buckets, self._sum)
