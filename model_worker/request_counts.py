"""How the worker's requests went. They balance whenever they are read: started = open + finished + failed + aborted."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from model_worker.engine.group import end_of
from model_worker.engine.sequence import EndReason, Sequence
from service.errors import ServiceError
from service.histograms import Times

FINISHED, FAILED, ABORTED = "finished", "failed", "aborted"

_OUTCOMES = {
    EndReason.STOP: FINISHED,
    EndReason.LENGTH: FINISHED,
    EndReason.REJECTED: FAILED,
    EndReason.FAILED: FAILED,
    EndReason.ABORTED: ABORTED,
    None: ABORTED,  # its caller left before the engine had ended it
}


class Counted(NamedTuple):
    """The counts of one moment."""

    started: int
    ended: dict[str, int]
    refused: dict[str, int]
    """Never started, by the reason of the error."""

    @property
    def open(self) -> int:
        """Requests under way."""
        return self.started - sum(self.ended.values())


class RequestCounts:
    """Written by the event loop, read by the page's thread.

    Attributes:
        queue: from arrival to the first step, of those that came so far.
        first_token: from arrival to the first token.
    """

    def __init__(self) -> None:
        self.queue = Times()
        self.first_token = Times()
        self._lock = threading.Lock()
        self._started = 0
        self._ended = dict.fromkeys((FINISHED, FAILED, ABORTED), 0)
        self._refused: Counter[str] = Counter()

    def read(self) -> Counted:
        """All counts at once."""
        with self._lock:
            return Counted(self._started, dict(self._ended), dict(self._refused))

    @contextlib.contextmanager
    def refusals(self) -> Iterator[None]:
        """Count what refuses a request here."""
        try:
            yield
        except ServiceError as error:
            with self._lock:
                self._refused[error.reason] += 1
            raise

    @contextlib.contextmanager
    def request(self, sequence: Sequence) -> Iterator[None]:
        """Count a request by how it ended."""
        with self._lock:
            self._started += 1
        try:
            yield
        finally:
            line = sequence.timeline
            if line.first_step:
                self.queue.observe(line.first_step - line.arrived)
            if line.first_token:
                self.first_token.observe(line.first_token - line.arrived)
            with self._lock:
                self._ended[_OUTCOMES[end_of(sequence)]] += 1
