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
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def family(self, name: str, help_text: str) -> HistogramMetricFamily:
        """The histogram as Prometheus reads it, buckets cumulated; the sum may be one duration behind or ahead."""
        total, buckets = 0, []
        for label, count in zip([*map(str, self._bounds), "+Inf"], list(self._counts), strict=True):
            total += count
            buckets.append((label, float(total)))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self._sum)
