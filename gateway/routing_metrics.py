"""What routing expects and how long it takes, in Prometheus' terms."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LOOKUP_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
ANSWERED, SILENT, SKIPPED = "answered", "silent", "skipped"


class RoutingMetrics:
    """The figures of one gateway's routing.

    ``expected_cached_tokens`` beside the cached tokens that usage reports says how good routing's picture is.

    Args:
        registry: shows them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lookups = Counter(
            "octavo_gateway_lookups",
            "questions to KV managers: answered, silent (not in time), skipped (silent before)",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "octavo_gateway_lookup_seconds",
            "what a request waited for a KV manager's answer",
            buckets=LOOKUP_BUCKETS,
            registry=registry,
        )
        self._prompt = Counter("octavo_gateway_routed_prompt_tokens", "tokens of routed requests", registry=registry)
        self._cached = Counter(
            "octavo_gateway_routed_cached_tokens", "of them, expected in the chosen worker's pool", registry=registry
        )
        self._left_out = Gauge(
            "octavo_gateway_workers_left_out", "healthy workers left out because their calls fail", registry=registry
        )
        for outcome in (ANSWERED, SILENT, SKIPPED):
            self._lookups.labels(outcome)

    def looked_up(self, outcome: str, seconds: float = 0.0) -> None:
        """A manager was asked, or would have been."""
        self._lookups.labels(outcome).inc()
        if outcome != SKIPPED:
            self._seconds.observe(seconds)

    def routed(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A request was given to a worker that is expected to find so many of its tokens."""
        self._prompt.inc(prompt_tokens)
        self._cached.inc(cached_tokens)

    def left_out(self, workers: int) -> None:
        """So many workers of the request's model were left out when it was routed."""
        self._left_out.set(workers)
