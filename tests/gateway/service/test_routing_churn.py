"""Field report B52: requests while their workers are killed, restarted and frozen in turn. Every one of them ends."""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from octavo.gateway.v1 import gateway_pb2

CLIENTS = 4
# A frozen worker is noticed after 1 + 2 + 2 s, and its requests then go on elsewhere; the rest is for a slow machine.
SLOWEST_SECONDS = 60.0
PROMPT, TOKENS = "abcdefg", 20
TEXT = (PROMPT * 3)[:TOKENS]


class Clients:
    """Ask without pause until told to stop, and keep how each request went."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._enough = threading.Event()
        self._news, self._answered = threading.Condition(), 0
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._running = [self._pool.submit(self._ask_on) for _ in range(CLIENTS)]

    def more(self) -> None:
        """Wait until as many more requests have ended as there are clients."""
        wanted = self._answered + CLIENTS
        with self._news:
            assert self._news.wait_for(lambda: self._answered >= wanted, 3 * SLOWEST_SECONDS)

    def stop(self) -> list[tuple[str, float]]:
        """(text, seconds) of each request."""
        self._enough.set()
        return [answer for one in self._running for answer in one.result(180)]

    def _ask_on(self) -> list[tuple[str, float]]:
        answers = []
        request = gateway_pb2.GenerateRequest(prompt=PROMPT)
        request.options.max_tokens = TOKENS
        while not self._enough.is_set():
            began = time.monotonic()
            text = "".join(piece.text for piece in self._gateway.stub.Generate(request, timeout=120))
            answers.append((text, time.monotonic() - began))
            with self._news:
                self._answered += 1
                self._news.notify_all()
        return answers


def churn(start_worker: Callable[..., Any], start_gateway: Callable[..., Any], rounds: int) -> None:
    """In each round one worker is killed and another takes its address; in every third it is frozen for a while."""
    workers = [start_worker("--token-seconds", "0.005") for _ in range(2)]
    gateway = start_gateway(",".join(worker.address for worker in workers))
    for _ in workers:
        gateway.wait_for(lambda event: str(event.get("message")).endswith("is ready"))
    clients = Clients(gateway)
    for number in range(rounds):
        place = number % 2
        worker = workers[place]
        ready = f"worker {worker.address} is ready"
        if number % 3 == 2:
            worker.signal(signal.SIGSTOP)
            gateway.wait_for(lambda event: "cannot be used" in str(event.get("message")))
            worker.signal(signal.SIGCONT)
        else:
            worker.end()
            gateway.wait_for(lambda event: "cannot be used" in str(event.get("message")))
            workers[place] = start_worker("--token-seconds", "0.005", "--listen", worker.address)
        gateway.wait_for(lambda event, ready=ready: event.get("message") == ready)
        clients.more()
    answers = clients.stop()
    assert {text for text, _ in answers} == {TEXT}
    assert max(seconds for _, seconds in answers) < SLOWEST_SECONDS


@pytest.mark.e2e
def test_every_request_ends_while_workers_come_and_go(
    start_worker: Callable[..., Any], start_gateway: Callable[..., Any]
) -> None:
    churn(start_worker, start_gateway, 3)


@pytest.mark.soak
def test_every_request_ends_through_sixty_rounds(
    start_worker: Callable[..., Any], start_gateway: Callable[..., Any]
) -> None:
    churn(start_worker, start_gateway, 60)
