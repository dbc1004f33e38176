"""The metrics page and clients that do not behave."""

import asyncio

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kv_manager import metrics

pytestmark = pytest.mark.unit

MORE_THAN_SOCKETS_HOLD = 1 << 25


class LongPage(Collector):
    def __init__(self):
        self.asked = asyncio.Event()

    def collect(self):
        self.asked.set()
        yield GaugeMetricFamily("long", "x" * MORE_THAN_SOCKETS_HOLD, value=1.0)


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT_SECONDS", 0.5)  # the request comes well within it

    async def ask():
        page = LongPage()
        server = metrics.MetricsServer(page)
        page.asked.clear()  # a collector is asked for its names when it is registered
        host, _, port = (await server.start("127.0.0.1:0")).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await page.asked.wait()
        async with asyncio.timeout(60):  # the reader pauses when it holds 128 KiB
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(MORE_THAN_SOCKETS_HOLD)
        writer.close()
        await server.stop()

    asyncio.run(ask())


def test_a_stop_waits_for_no_client(monkeypatch):
    """One that is connected and asks nothing has ten minutes here to ask, and would hold a stop up as long."""
    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT_SECONDS", 600.0)

    async def stop():
        server = metrics.MetricsServer(LongPage())
        host, _, port = (await server.start("127.0.0.1:0")).rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(60):
            await server.stop()
        writer.close()

    asyncio.run(stop())
