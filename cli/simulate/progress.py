"""Progress bars on stderr, while it is a terminal."""

import contextlib
from collections.abc import Callable, Iterator

import rich.progress
from rich.console import Console

from cli.simulate.jobs import Memory
from cli.simulate.scheduling import Step


class Bars:
    """A bar for each run."""

    def __init__(self, progress: rich.progress.Progress) -> None:
        self._progress = progress

    def counting(self, name: str, total: int) -> Callable[[], None]:
        """A bar that each call moves by one."""
        task = self._progress.add_task(name, total=total)
        return lambda: self._progress.advance(task)

    def watching(self, name: str, total: int) -> Callable[[Memory], Callable[[Step], None]]:
        """A bar that follows the finished requests of a run."""
        task = self._progress.add_task(name, total=total)
        shown = 0

        def observe(step: Step) -> None:
            nonlocal shown
            if step.finished != shown:
                shown = step.finished
                self._progress.update(task, completed=shown)

        return lambda _: observe


@contextlib.contextmanager
def bars() -> Iterator[Bars]:
    """Bars that vanish at the end."""
    console = Console(stderr=True)
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bars(progress)
