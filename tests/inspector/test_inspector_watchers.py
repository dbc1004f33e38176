"""Who watches by HTTP alone, without the page."""

import http.client
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import successor_model
from inspected_stack import inspected_stack
from processes import ServiceProcess
from silent_pool import LISTEN, attach, http_of, manager

from octavo.kv.v1 import kv_manager_pb2_grpc, watch_pb2
from service.channels import open_channel

pytestmark = pytest.mark.e2e

SECONDS = 120.0


def test_a_gateway_that_is_to_end_does_not_wait_for_who_looks() -> None:
    """A stream without end would hold it for the whole grace, ten minutes here."""
    with (
        manager() as kv,
        ServiceProcess("gateway", *LISTEN, f"--inspect-managers={kv.address}", "--grace-seconds=600") as gateway,
    ):
        attach(kv.address, 24)
        with watched(http_of(gateway), f"manager={kv.address}&pool=pool") as stream:
            gateway.signal(signal.SIGTERM)
            while stream.read1(1 << 16):
                pass
            assert gateway.process.wait(SECONDS) == 0


def test_the_text_of_a_block_is_told_where_both_operators_allow_it(tmp_path: Path) -> None:
    """A block of 16 tokens: letters, a token each."""
    model = successor_model.write(tmp_path)
    allowed = {"manager": ("--watch-token-ids=true",), "gateway": ("--inspect-tokens=true",)}
    with inspected_stack(model, num_blocks=512, **allowed) as stack:
        place = f"manager={stack.manager}&pool=default"
        with watched(stack.http, place):
            deadline = time.monotonic() + SECONDS
            asked, told = set[str](), set[object]()
            # The gateway follows text by a Watch of its own. Blocks filled before that began are never told.
            while not asked & told:
                assert time.monotonic() < deadline, told
                asked.add(text := f"{len(asked):04d} are sixteen")
                assert len(text) == 16
                stack.complete(prompt=f"{text} letters", max_tokens=1)
                paths = [f"/inspect/tokens?{place}&digest={digest.hex()}" for digest in digests_of(stack.manager)]
                told = {get(stack.http, path)["text"] for path in paths}


@contextmanager
def watched(address: str, place: str) -> Iterator[http.client.HTTPResponse]:
    """A viewer of a pool, who has been told something."""
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    try:
        connection.request("GET", f"/inspect/watch?{place}")
        response = connection.getresponse()
        assert response.status == 200
        assert response.read1(1)
        yield response
    finally:
        connection.close()


def digests_of(address: str) -> list[bytes]:
    """Those of the cache, from a watcher's snapshot."""
    found: list[bytes] = []
    with open_channel(address) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        call = stub.Watch(watch_pb2.WatchRequest(pool="default"), timeout=SECONDS, wait_for_ready=True)
        for response in call:
            found += response.snapshot.digests
            if response.snapshot.last:
                call.cancel()
                return found
    raise AssertionError("the stream ended")


def get(address: str, path: str) -> dict[str, object]:
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        document: dict[str, object] = json.loads(response.read())
        assert response.status == 200, document
        return document
    finally:
        connection.close()
