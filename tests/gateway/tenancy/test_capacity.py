"""How many places there are, from what workers tell."""

from typing import Any

import pytest

from gateway.models import ModelCache
from gateway.tenancy.capacity import capacity_of, places_at
from gateway.workers import Trouble, Worker

pytestmark = pytest.mark.unit


class Named:
    """What of a model is looked at here."""

    def __init__(self, name: str) -> None:
        self.name = name


def worker(model: Any, size: int, trouble: str = "") -> Worker:
    made = Worker("127.0.0.1:1", ModelCache())
    made.model, made.max_sequences = model, size
    made.trouble = Trouble(trouble) if trouble else None
    return made


async def test_places_are_what_usable_workers_run_and_a_quarter_more() -> None:
    model, other = Named("m"), Named("other")
    workers = [worker(model, 32), worker(model, 2), worker(model, 16, "gone"), worker(other, 64), worker(None, 8)]
    # 32 + 8, and 2 + the one that is the least.
    assert places_at(workers, "m") == 43
    assert places_at(workers, "other") == 80
    # While none is usable those that were count.
    assert places_at([worker(model, 16, "gone")], "m") == 20
    # One that does not tell may run any number.
    assert places_at([*workers, worker(model, 0)], "m") is None
    assert capacity_of(lambda: workers, None)("m")() == 43
    assert capacity_of(lambda: workers, 5)("m")() == 5
