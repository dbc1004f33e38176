"""``octavo tour``: the pages at work, scene by scene."""

import select
import sys
import time
from typing import Annotated

import typer

WIDTH = 100


def tour(
    fast: Annotated[bool, typer.Option("--fast", help="print everything at once")] = False,
) -> None:
    """Show paged memory at work in about two minutes.

    The real KV manager, with a pool small enough to draw. Enter goes on at once, Ctrl-C ends.
    """
    from rich.console import Console

    from cli.printing import show
    from cli.tour.pool import TourPool
    from cli.tour.scenes import SCENES
    from cli.tour.views import scene_view

    fast = fast or not Console().is_terminal
    pool = TourPool()
    for number, play in enumerate(SCENES, start=1):
        scene = play(pool)
        show(scene_view(number, len(SCENES), scene, pool), width=WIDTH)
        if not fast and number < len(SCENES):
            wait(scene.seconds)


def wait(seconds: float) -> None:
    """Give people time to read; Enter ends it."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
    elif select.select([sys.stdin], [], [], seconds)[0]:
        sys.stdin.readline()
