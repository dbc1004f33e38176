"""How far a simulation is, on stderr: bars on a terminal, a line now and then elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import rich.progress
from rich.console import Console

from cli.simulate.jobs import Memory
from cli.simulate.scheduling import Step

# The first line comes as late too: what is done sooner says enough by being done.
LINE_SECONDS = 10.0

Move = Callable[[int], None]
"""Called with how much is done."""


class Bars:
    """A bar for each run.

    Args:
        begin: makes one, by its name and how much there is to do.
    """

    def __init__(self, begin: Callable[[str, int], Move]) -> None:
        self._begin = begin

    def counting(self, name: str, total: int) -> Callable[[], None]:
        """A bar that each call moves by one."""
        move = self._begin(name, total)
        done = 0

        def one() -> None:
            nonlocal done
            done += 1
            move(done)

        return one

    def watching(self, name: str, total: int) -> Callable[[Memory], Callable[[Step], None]]:
        """A bar that follows the finished requests of a run."""
        move = self._begin(name, total)
        shown = 0

        def observe(step: Step) -> None:
            nonlocal shown
            if step.finished != shown:
                shown = step.finished
                move(shown)

        return lambda _: observe


class Lines:
    """Bars for a log: of all that move, the one that is moved when it is time for a line.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + LINE_SECONDS

    def begin(self, name: str, total: int) -> Move:
        """As ``Bars`` wants it."""

        def move(done: int) -> None:
            now = self._clock()
            if now >= self._due:
                self._due = now + LINE_SECONDS
                print(f"{name}: {done:,} of {total:,}", file=sys.stderr)

        return move


@contextlib.contextmanager
def bars() -> Iterator[Bars]:
    """Bars that vanish at the end, or lines that stay."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Bars(Lines().begin)
        return
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console, transient=True) as progress:

        def begin(name: str, total: int) -> Move:
            task = progress.add_task(name, total=total)
            return lambda done: progress.update(task, completed=done)

        yield Bars(begin)
