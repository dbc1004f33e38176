"""Waiting for something that is asked for again and again."""

import time
from collections.abc import Callable, Iterator

LOOK_SECONDS = 0.5


def looks(
    patience: float | None, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """One turn at once, and then one per ``LOOK_SECONDS`` until ``patience`` seconds are over; None waits for ever.

    The last turn comes when the patience ends, not before.
    """
    started = clock()
    yield
    while patience is None or (left := patience - (clock() - started)) > 0:
        sleep(LOOK_SECONDS if patience is None else min(LOOK_SECONDS, left))
        yield
