"""Frames of the live view on a terminal, until somebody presses q."""

from rich.console import Console
from rich.live import Live

from cli.failures import CliError
from cli.live.follower import Follower
from cli.live.keys import Wait, keyboard
from cli.live.views import frame

SECONDS_PER_FRAME = 0.25


def watch_live(follower: Follower) -> None:
    """Show what the follower hears.

    Raises:
        CliError: there is no terminal to draw on.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        raise CliError("--live draws on a terminal, and this is none: octavo inspect --blocks prints once")
    with follower, keyboard() as wait, Live(console=console, screen=True, auto_refresh=False) as live:
        show(follower, console, live, wait)


def show(follower: Follower, console: Console, live: Live, wait: Wait) -> None:
    """Draw a frame whenever something was heard; space holds the picture, q ends."""
    paused, drawn = False, None
    while True:
        with follower.lock:
            seen = (follower.mirror.heard, follower.mirror.trouble, console.size, paused)
            held = paused and drawn is not None and drawn[3]
            picture = None if held or seen == drawn else frame(follower.mirror, *console.size, paused)
        if picture is not None:  # printing takes longer than drawing: the stream goes on meanwhile
            live.update(picture, refresh=True)
            drawn = seen
        match wait(SECONDS_PER_FRAME):
            case "q" | "Q":
                return
            case " ":
                paused = not paused
            case _:
                pass
