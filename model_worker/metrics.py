"""Prometheus metrics of the worker, read at each scrape. Seconds are seconds, counts of tokens are tokens."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from model_worker.engine.engine import Engine
from model_worker.servicer import Worker
from service.listening import cannot_listen

COUNTERS = {
    "steps": "Steps run.",
    "prompt_tokens": "Prompt tokens of first admissions: the denominator of the hit rate.",
    "cached_tokens": "Of them, those found in the prefix cache.",
    "computed_tokens": "Tokens that went through the model.",
    "generated_tokens": "Tokens sampled.",
    "delayed_requests": "Requests that had to wait for room in the pool.",
    "preemptions": "Times a sequence lost its blocks.",
    "swaps": "Of them, those whose blocks were parked in the host tier.",
    "swap_failures": "Steps whose blocks did not move between pool and host tier.",
    "forks": "Samples forked from another one of their request.",
    "reattaches": "Times the pool was attached again.",
}


class WorkerCollector(Collector):
    """Counts of requests balance; of the engine's counters, a scrape may see two one step apart."""

    def __init__(self, worker: Worker, engine: Engine) -> None:
        self._worker = worker
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        statistics = self._engine.statistics
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"octavo_worker_{name}", text, value=getattr(statistics, name))
        gauges = {
            "waiting_requests": ("Requests without blocks.", self._engine.waiting_requests),
            "running_requests": ("Requests with blocks.", self._engine.running_requests),
            "max_sequences": ("The most sequences with blocks.", self._engine.limits.max_sequences),
            "pool_blocks": ("Blocks in the pool.", self._engine.limits.num_blocks),
            "referenced_blocks": ("Blocks held by requests, as of the last step.", statistics.referenced_blocks),
            "cached_blocks": ("Blocks held by nobody whose content can be found.", statistics.cached_blocks),
            "manager_silence_seconds": ("How long the manager has owed an answer.", self._engine.silent_seconds),
            "ready": ("1 while the worker takes requests.", float(self._worker.ready and not self._worker.draining)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"octavo_worker_{name}", text, value=value)
        yield from self._requests()
        yield from self._times()

    def _requests(self) -> Iterator[Metric]:
        counted = self._worker.counts.read()
        yield CounterMetricFamily("octavo_worker_started_requests", "Requests taken.", value=counted.started)
        yield GaugeMetricFamily("octavo_worker_open_requests", "Of them, those under way.", value=counted.open)
        ended = CounterMetricFamily(
            "octavo_worker_requests", "Of them, those that ended: finished, failed or aborted.", labels=["outcome"]
        )
        for outcome, count in counted.ended.items():
            ended.add_metric([outcome], count)
        yield ended
        refused = CounterMetricFamily(
            "octavo_worker_refused_requests", "Requests not taken, by the error's reason.", labels=["reason"]
        )
        for reason, count in sorted(counted.refused.items()):
            refused.add_metric([reason], count)
        yield refused

    def _times(self) -> Iterator[Metric]:
        counts, times = self._worker.counts, self._engine.times
        yield times.step.family("octavo_worker_step_seconds", "One forward pass, with its swaps and its sampling.")
        yield times.manager_wait.family(
            "octavo_worker_manager_wait_seconds", "How long the engine stood waiting for an answer of the manager."
        )
        yield counts.queue.family("octavo_worker_queue_seconds", "From a request's arrival to its first step.")
        yield counts.first_token.family(
            "octavo_worker_first_token_seconds", "From a request's arrival to its first token."
        )


def serve_metrics(listen: str, worker: Worker, engine: Engine) -> str:
    """Serve the page on ``host:port`` (port 0 picks one) in a thread; returns the address in use.

    Raises:
        OSError: the address cannot be bound.
    """
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker, engine))
    host, _, port = listen.rpartition(":")
    try:
        server, _ = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise cannot_listen(listen, error, "--metrics") from error
    return f"{host}:{server.server_port}"
