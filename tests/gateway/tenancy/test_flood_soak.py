"""What a flood costs a light tenant, in seconds: with a tenant of its own, and as one more request of the flood's."""

import hashlib
import statistics
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo.gateway.v1 import gateway_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(180)]

HERE = Path(__file__).resolve().parent

PLACES, FLOOD, FLOOD_TOKENS, TOKEN_SECONDS = 4, 64, 60, 0.005
WORKER_QUEUE_SECONDS = 0.25
"""What the toy worker says of its own queue."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Any]:
    processes = sys.modules["gateway_processes"]
    toy = processes.Child([str(HERE.parent / "service" / "toy_worker.py"), "--token-seconds", str(TOKEN_SECONDS)])
    worker = str(toy.wait_event("ready")["grpc"])
    rows = (f'[tenants.{name}]\nkeys = ["{hashlib.sha256(name.encode()).hexdigest()}"]' for name in ("flood", "light"))
    (tmp_path / "tenants.toml").write_text("\n".join(rows))
    flags = ("--tenants", str(tmp_path / "tenants.toml"), "--max-running", str(PLACES))
    gateway = processes.Gateway(["--workers", worker, *flags])
    gateway.wait_event("ready")
    yield gateway
    gateway.end()
    toy.end()


def waited(gateway: Any, tenant: str, tokens: int) -> float:
    """Seconds that a request waited for its place."""
    options = gateway_pb2.GenerateOptions(max_tokens=tokens, ignore_eos=True)
    request = gateway_pb2.GenerateRequest(prompt="abc", options=options)
    *_, last = gateway.stub.Generate(request, timeout=120, metadata=[("x-api-key", tenant)])
    return float(last.usage.queue_seconds) - WORKER_QUEUE_SECONDS


def test_a_flood_delays_a_light_tenant_by_one_free_place(gateway: Any) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            waited(gateway, "flood", FLOOD_TOKENS)

    with ThreadPoolExecutor(FLOOD) as pool:
        for _ in range(FLOOD):
            pool.submit(flood)
        waited(gateway, "flood", 1)  # the queue is full from here on
        own = sorted(waited(gateway, "light", 10) for _ in range(30))
        shared = sorted(waited(gateway, "flood", 10) for _ in range(4))
        stop.set()
    print(f"\nown tenant: p50 {statistics.median(own):.3f} s, largest {own[-1]:.3f} s; as one of the flood: {shared}")
    # A place is free at the latest when the longest request ends: 60 tokens of 5 ms. As one of the flood about 60 go
    # before it, through 4 places: 15 times as long.
    assert statistics.median(own) * 5 < shared[0]
    assert own[-1] * 2 < shared[0]
