"""Metrics by tenant. Names come from the tenants file alone, so there are as many series as it has tenants."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.tenancy.usage import Totals

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

    @property
    def unauthenticated_calls(self) -> int:
        """Calls without a key of any tenant."""
        return int(sum(value for _, value in _counts(self._unknown)))

    def totals(self) -> Mapping[str, Totals]:
        """What each tenant has taken; of a tenant that was never here, nothing."""
        found: defaultdict[str, Totals] = defaultdict(Totals)
        for labels, value in _counts(self._calls):
            found[labels["tenant"]] = found[labels["tenant"]]._replace(calls=int(value))
        for labels, value in _counts(self._waited):
            found[labels["tenant"]] = found[labels["tenant"]]._replace(wait_seconds=value)
        for labels, value in _counts(self._tokens):
            tokens = {f"{labels['kind']}_tokens": int(value)}
            found[labels["tenant"]] = found[labels["tenant"]]._replace(**tokens)
        for labels, value in _counts(self._refused):
            before = found[labels["tenant"]]
            found[labels["tenant"]] = before._replace(refused_requests=before.refused_requests + int(value))
        return found

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


def _counts(counter: Counter) -> Iterator[tuple[Mapping[str, str], float]]:
    """The labels and values of a counter's series."""
    for family in counter.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                yield sample.labels, sample.value
