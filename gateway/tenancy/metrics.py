"""Metrics by tenant. Names come from the tenants file alone, so there are as many series as it has tenants."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Counts = Iterable[tuple[str, int, int]]
"""(tenant, calls under way, requests that wait)."""


class TenantMetrics:
    """Counters of the gate, in the gateway's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._refused = Counter(
            "octavo_gateway_tenant_refused",
            "requests refused for a limit of their tenant",
            ["tenant", "reason"],
            registry=registry,
        )
        self._tokens = Counter(
            "octavo_gateway_tenant_tokens", "tokens charged, by kind", ["tenant", "kind"], registry=registry
        )
        self._calls = Counter("octavo_gateway_tenant_calls", "calls let in", ["tenant"], registry=registry)
        self._placed = Counter(
            "octavo_gateway_tenant_placed", "requests that got a place at a worker", ["tenant"], registry=registry
        )
        self._waited = Counter(
            "octavo_gateway_tenant_wait_seconds", "seconds they waited for it", ["tenant"], registry=registry
        )
        self._unknown = Counter(
            "octavo_gateway_unauthenticated", "calls without a key of any tenant", registry=registry
        )

    def show(self, counts: Callable[[], Counts]) -> None:
        """Read the gauges from ``counts`` whenever the page is asked for."""
        self._registry.register(_Gauges(counts))

    def unauthenticated(self) -> None:
        self._unknown.inc()

    def let_in(self, tenant: str) -> None:
        self._calls.labels(tenant).inc()

    def refused(self, tenant: str, reason: str) -> None:
        self._refused.labels(tenant, reason).inc()

    def placed(self, tenant: str, waited: float) -> None:
        self._placed.labels(tenant).inc()
        self._waited.labels(tenant).inc(waited)

    def charged(self, tenant: str, prompt_tokens: int, generated_tokens: int) -> None:
        self._tokens.labels(tenant, "prompt").inc(prompt_tokens)
        self._tokens.labels(tenant, "generated").inc(generated_tokens)


class _Gauges(Collector):
    def __init__(self, counts: Callable[[], Counts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        gauges = [
            GaugeMetricFamily(f"octavo_gateway_tenant_{name}", text, labels=["tenant"])
            for name, text in (
                ("running_calls", "calls under way, those that wait included"),
                ("waiting_requests", "requests that wait for a place at a worker"),
            )
        ]
        for tenant, *values in self._counts():
            for gauge, value in zip(gauges, values, strict=True):
                gauge.add_metric([tenant], value)
        yield from gauges
