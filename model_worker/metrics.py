"""Prometheus metrics of the worker, read from the engine's counters at each scrape."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from model_worker.engine.engine import Engine

COUNTERS = {
    "steps": "Steps run.",
    "prompt_tokens": "Prompt tokens of admitted requests.",
    "cached_tokens": "Prompt tokens found in the prefix cache.",
    "computed_tokens": "Tokens that went through the model.",
    "generated_tokens": "Tokens sampled.",
    "finished_requests": "Requests that ended by themselves.",
    "aborted_requests": "Requests ended by their caller.",
    "delayed_requests": "Requests that had to wait for room in the pool.",
    "preemptions": "Times a sequence lost its blocks.",
    "swaps": "Times a sequence was parked in the host tier.",
    "swap_failures": "Steps whose blocks did not move between pool and host tier.",
    "forks": "Samples forked from another one of their request.",
    "reattaches": "Times the pool was attached again.",
    "step_seconds": "Seconds spent in forward passes and sampling.",
    "manager_wait_seconds": "Seconds the engine stood waiting for the manager.",
}


class EngineCollector(Collector):
    """Reads single values; a scrape may see two counters one step apart."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        statistics = self._engine.statistics
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"octavo_worker_{name}", text, value=getattr(statistics, name))
        gauges = {
            "waiting_requests": ("Requests without blocks.", self._engine.waiting_requests),
            "running_requests": ("Requests with blocks.", self._engine.running_requests),
            "pool_blocks": ("Blocks in the pool.", self._engine.limits.num_blocks),
            "referenced_blocks": ("Blocks held by requests.", statistics.referenced_blocks),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"octavo_worker_{name}", text, value=value)


def serve_metrics(listen: str, engine: Engine) -> str:
    """Serve the page on ``host:port`` (port 0 picks one) in a thread; returns the address in use.

    Raises:
        OSError: the address cannot be bound.
    """
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine))
    host, _, port = listen.rpartition(":")
    server, _ = start_http_server(int(port), host, registry)
    return f"{host}:{server.server_port}"
