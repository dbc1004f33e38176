"""Prometheus metrics. They are read and printed on the event loop, between two steps, so every scrape balances."""

import asyncio
import logging
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from kv_manager.core import views
from kv_manager.core.manager import Manager
from kv_manager.recording import RecordingManager
from octavo.kv.v1 import steps_pb2
from service.histograms import Times

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 5.0

_TOTALS = {
    "admitted_sequences": "Sequences granted a table by an admit, readmissions included.",
    "readmitted_sequences": "Sequences admitted again after a preemption or a failed step.",
    "released_sequences": "Sequences released.",
    "rejected_sequences": "Sequences that can never fit.",
    "lookup_tokens": "Prompt tokens of first admissions: the denominator of the hit rate.",
    "hit_tokens": "Cached tokens of first admissions.",
    "readmitted_lookup_tokens": "Tokens of readmissions, kept apart so that preemption cannot pass for caching.",
    "readmitted_hit_tokens": "Cached tokens of readmissions.",
    "late_hit_tokens": "Tokens found by an advance of a prompt.",
    "granted_blocks": "Blocks taken from the free list.",
    "evicted_blocks": "Blocks that lost their digest because they were granted again.",
    "forks": "Children made by forks.",
    "copied_blocks": "Copy-on-write orders.",
    "swapped_out_blocks": "Device-to-host moves.",
    "swapped_in_blocks": "Host-to-device moves.",
    "host_dropped_sequences": "Sequences dropped from the host tier to make room.",
}


_MODES = {
    steps_pb2.PREEMPTION_MODE_RECOMPUTE: "recompute",
    steps_pb2.PREEMPTION_MODE_SWAP: "swap",
}
_REASONS = {
    steps_pb2.PREEMPTION_REASON_POOL: "pool",
    steps_pb2.PREEMPTION_REASON_TENANT_LIMIT: "tenant_limit",
    steps_pb2.PREEMPTION_REASON_HOST_ROOM: "host_room",
}


# Upper ends of the buckets of the time it takes to serve a step, in seconds: far below the usual ones.
STEP_BOUNDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


def step_times() -> Times:
    """A histogram of the time it takes to serve a step."""
    return Times(STEP_BOUNDS)


class ManagerCollector(Collector):
    """Reads the manager's pools when scraped."""

    def __init__(self, manager: Manager, step_times: Times) -> None:
        self._manager = manager
        self._step_times = step_times

    def collect(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily(
            "octavo_kv_blocks", "Blocks by state; the sum is the pool.", labels=["pool", "state"]
        )
        sequences = GaugeMetricFamily("octavo_kv_sequences", "Live sequences by state.", labels=["pool", "state"])
        counters = {
            name: CounterMetricFamily(f"octavo_kv_{name}", help_text, labels=["pool"])
            for name, help_text in _TOTALS.items()
        }
        for pool in self._manager.pools():
            stats, totals = views.stats(pool), views.totals(pool)
            for state in ("free", "cached", "referenced", "fenced"):
                blocks.add_metric([pool.name, state], getattr(stats, f"{state}_blocks"))
            for state in ("running", "swapped"):
                sequences.add_metric([pool.name, state], getattr(stats, f"{state}_sequences"))
            for name, counter in counters.items():
                counter.add_metric([pool.name], getattr(totals, name))
        yield blocks
        yield sequences
        yield from self._preemptions()
        yield from counters.values()
        yield self._step_times.family("octavo_kv_step_seconds", "Time to serve a step, without the wire.")
        if isinstance(self._manager, RecordingManager):
            help_text = "1 while a record is kept, 0 when a write has failed; absent without --record."
            yield GaugeMetricFamily("octavo_kv_recording", help_text, value=float(self._manager.recording))

    def _preemptions(self) -> Iterator[Metric]:
        victims = CounterMetricFamily(
            "octavo_kv_preempted_sequences",
            "Sequences that gave way, by what happened to their blocks and why.",
            labels=["pool", "mode", "reason"],
        )
        moved = CounterMetricFamily(
            "octavo_kv_swapped_bytes", "Bytes moved to the host tier and back.", labels=["pool", "direction"]
        )
        for pool in self._manager.pools():
            for mode, mode_name in _MODES.items():
                for reason, reason_name in _REASONS.items():
                    victims.add_metric([pool.name, mode_name, reason_name], pool.preemptions[mode, reason])
            moved.add_metric([pool.name, "out"], pool.totals.swapped_out_blocks * pool.spec.block_bytes)
            moved.add_metric([pool.name, "in"], pool.totals.swapped_in_blocks * pool.spec.block_bytes)
        yield victims
        yield moved


class MetricsServer:
    """``GET /metrics`` and nothing else, on the event loop of the servicer."""

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._server: asyncio.Server | None = None

    async def start(self, listen: str) -> str:
        """Listen on ``host:port`` and return the address in use.

        Raises:
            OSError: the address cannot be bound.
        """
        host, _, port = listen.rpartition(":")
        self._server = await asyncio.start_server(self._answer, host.strip("[]"), int(port))
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening. Nobody waits for requests under way, whose client may be slow to ask or to read."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Drained is then sent: what a client does not read is neither kept for it nor waited for.
        writer.transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            logger.debug("a metrics request was not answered: %s", error)
            writer.transport.abort()
        finally:
            writer.close()

    def _response(self, head: bytes) -> bytes:
        if head.split(b" ", 2)[:2] == [b"GET", b"/metrics"]:
            status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        else:
            status, kind, body = "404 Not Found", "text/plain; charset=utf-8", b"only GET /metrics is served here\n"
        start = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return start.encode() + body
