"""What is counted with every token: plain numbers, which become Prometheus metrics when the page is asked for.

A counter and a histogram of ``prometheus_client`` take a lock for each of their numbers; these belong to the event
loop, which reads them too.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from service.histograms import Times

NEXT_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 5.0, 20.0, 60.0)
_LABELS = ("model", "surface")


class TokenCounts:
    """Tokens on their way to clients, of one model and surface.

    Attributes:
        generated: how many there were.
        next_token: seconds from one token of an answer to the next.
    """

    __slots__ = ("generated", "next_token")

    def __init__(self) -> None:
        self.generated = 0
        self.next_token = Times(NEXT_TOKEN_BUCKETS)


class TokenMetrics(Collector):
    """The counts of all models and surfaces."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], TokenCounts] = {}

    def of(self, model: str, surface: str) -> TokenCounts:
        """Those of these labels; shown from now on, zeros included."""
        return self._counts.setdefault((model, surface), TokenCounts())

    def describe(self) -> Iterator[Metric]:
        """The metrics' names; without them none could be asked for alone."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        generated = CounterMetricFamily("octavo_gateway_generated_tokens", "tokens sent to clients", labels=_LABELS)
        next_token = HistogramMetricFamily(
            "octavo_gateway_next_token_seconds", "from one token of an answer to the next", labels=_LABELS
        )
        for labels, counts in self._counts.items():
            generated.add_metric(labels, counts.generated)
            counts.next_token.add_to(next_token, labels)
        yield generated
        yield next_token
