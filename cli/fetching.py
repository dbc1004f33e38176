"""Fetching the demo model with a progress bar per stage."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cli.failures import CliError
from model_worker.demo import DemoModelError, fetch_demo_model, is_fetched

TITLES = {"download": "fetching", "check": "checking digests", "convert": "converting"}


def fetch_with_progress(target: Path) -> Path:
    """Fetch to ``target``; off a terminal, say each stage once.

    Raises:
        CliError: the download failed, or the files are not the published ones.
    """
    if is_fetched(target):
        return target
    console = Console(stderr=True, highlight=False)
    columns = [TextColumn("{task.description:<17}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                title = TITLES.get(stage, stage)
                tasks[stage] = bars.add_task(title, total=total)
                if not console.is_terminal:
                    console.print(f"{title}: {total / 2**20:.0f} MiB", soft_wrap=True)
            bars.update(tasks[stage], completed=done, total=total)

        try:
            return fetch_demo_model(target, report)
        except DemoModelError as error:
            raise CliError(str(error)) from error
