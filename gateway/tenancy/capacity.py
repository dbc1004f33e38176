"""How many samples the gateway has at the workers of a model at once."""

from collections.abc import Callable, Sequence
from fractions import Fraction

from gateway.tenancy.places import Capacity
from gateway.workers import Worker

# Beyond what a worker runs at once, so that its next one is there in the step in which one ends. What waits at a
# worker waits outside of the fair queue: no more than needed.
MARGIN = Fraction(1, 4)


def capacity_of(workers: Callable[[], Sequence[Worker]], fixed: int | None = None) -> Callable[[str], Capacity]:
    """The places of each model, by its name.

    Args:
        workers: those known now.
        fixed: as many for every model, whatever workers say.
    """

    def of(model: str) -> Capacity:
        return lambda: fixed or places_at(workers(), model)

    return of


def places_at(workers: Sequence[Worker], model: str) -> int | None:
    """What the usable workers of a model run at once, and a margin; None when one of them does not tell.

    While none is usable those that are not count: the queue goes on at its pace, and each request hears why.
    """
    serving = [worker for worker in workers if worker.model is not None and worker.model.name == model]
    usable = [worker for worker in serving if worker.trouble is None] or serving
    sizes = [worker.max_sequences for worker in usable]
    if not all(sizes):
        return None
    return sum(size + max(1, int(size * MARGIN)) for size in sizes)
