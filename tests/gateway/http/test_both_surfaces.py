"""Both surfaces of one gateway, which share its event loop, under calls of both kinds at once."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gateway_http import Http

from octavo.gateway.v1 import gateway_pb2

pytestmark = pytest.mark.e2e

AT_ONCE = 8


@pytest.mark.parametrize("calls", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_calls_of_both_kinds_leave_no_word_in_the_log(
    start_worker: Callable[..., Any], start_gateway: Callable[..., Any], calls: int
) -> None:
    """B49: gRPC's own poller and the loop's other users do not get into each other's way."""
    worker = start_worker("--token-seconds", "0")
    gateway = start_gateway(worker.address, "--log-level", "warning")
    http = Http(gateway.wait_event("ready")["http"])
    request = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(max_tokens=3))

    def call(number: int) -> str:
        if number % 2:
            return "".join(response.text for response in gateway.stub.Generate(request, timeout=60))
        answer = http.post("/v1/completions", {"prompt": "abc", "max_tokens": 3})
        return str(answer.json["choices"][0]["text"])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert set(pool.map(call, range(calls))) == {"abc"}
    gateway.signal(signal.SIGTERM)
    gateway.all_events("")
    assert gateway.process.returncode == 0
    # Neither a warning nor a line that is no log entry, such as those that gRPC's library writes itself.
    assert [event for event in gateway.seen if event.get("event") != "ready"] == []
