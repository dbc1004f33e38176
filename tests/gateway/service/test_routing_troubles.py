"""Routing while something is wrong: calls that fail on a healthy worker, managers that do not say what is cached."""

import math
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from octavo.gateway.v1 import gateway_pb2

pytestmark = pytest.mark.e2e

TWO_TOKENS = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(max_tokens=2))


def outcome(gateway: Any) -> str:
    """ "OK" or the code of one request."""
    try:
        assert len(list(gateway.stub.Generate(TWO_TOKENS, timeout=60))) == 2
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def timed(gateway: Any) -> float:
    """Seconds that a request took."""
    began = time.monotonic()
    assert outcome(gateway) == "OK"
    return time.monotonic() - began


def both_ready(gateway: Any, *workers: Any) -> None:
    """Return when the gateway can use the workers, in whatever order it says so."""
    left = {f"worker {worker.address} is ready" for worker in workers}
    while left:
        left.discard(gateway.wait_for(lambda event: event.get("message") in left)["message"])


def test_a_healthy_worker_whose_calls_fail_is_left_out(
    start_worker: Callable[..., Any], start_gateway: Callable[..., Any]
) -> None:
    """In turns every other request meets the broken one, until three have failed. Then it gets one each time a pause is
    over. Pauses of 1, 2, 4, ... s: the k-th is over 2^k - 1 s after the circuit opened, so s seconds hold at most
    log2(s + 1) of them.
    """
    broken, sound = start_worker("--broken", "INTERNAL"), start_worker()
    gateway = start_gateway(f"{broken.address},{sound.address}", "--routing", "round-robin")
    both_ready(gateway, broken, sound)
    began = time.monotonic()
    outcomes = [outcome(gateway) for _ in range(40)]
    pauses = int(math.log2(time.monotonic() - began + 1))
    assert set(outcomes) == {"OK", "INTERNAL"}
    assert 3 <= outcomes.count("INTERNAL") <= 3 + pauses


def test_a_request_that_failed_before_its_first_token_goes_to_another_worker(
    start_worker: Callable[..., Any], start_gateway: Callable[..., Any]
) -> None:
    broken, sound = start_worker("--broken", "UNAVAILABLE"), start_worker()
    gateway = start_gateway(f"{broken.address},{sound.address}", "--routing", "round-robin")
    both_ready(gateway, broken, sound)
    assert [outcome(gateway) for _ in range(10)] == ["OK"] * 10


def test_a_frozen_manager_holds_up_three_requests_and_is_asked_again_later(
    start_worker: Callable[..., Any], start_manager: Callable[..., Any], start_gateway: Callable[..., Any]
) -> None:
    """Each of the three waits for the lookup's two seconds; then requests go by load, until it answers a trial."""
    workers, manager = [start_worker(), start_worker()], start_manager()
    addresses = ",".join(worker.address for worker in workers)
    gateway = start_gateway(addresses, "--managers", manager.address, "--routing-lookup-seconds", "2")
    both_ready(gateway, *workers)
    assert outcome(gateway) == "OK"
    manager.signal(signal.SIGSTOP)
    assert all(timed(gateway) >= 2 for _ in range(3))
    assert min(timed(gateway) for _ in range(3)) < 2
    gateway.wait_for(lambda event: "does not say what is cached" in event.get("message", ""))
    manager.signal(signal.SIGCONT)
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(gateway.wait_for, lambda event: "answers again" in event.get("message", ""))
        while not answers.done():
            assert outcome(gateway) == "OK"
        answers.result()


def test_a_manager_that_is_not_there_holds_up_nobody(
    start_worker: Callable[..., Any], start_gateway: Callable[..., Any], free_port: int
) -> None:
    workers = [start_worker(), start_worker()]
    gateway = start_gateway(
        ",".join(worker.address for worker in workers),
        "--managers",
        f"127.0.0.1:{free_port}",
        "--routing-lookup-seconds",
        "10",
    )
    both_ready(gateway, *workers)
    assert max(timed(gateway) for _ in range(8)) < 5
