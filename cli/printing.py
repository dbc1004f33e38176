"""What rich draws, on its way to stdout."""

from rich.console import Console, RenderableType


def show(view: RenderableType, *, width: int | None = None) -> None:
    """Print a view: to a terminal as wide as that is, elsewhere as plain lines without the padding at their ends.

    Args:
        view: what to draw.
        width: columns of what goes to no terminal; None for rich's own choice.
    """
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(view)
        return
    if width is not None:
        console.width = width
    with console.capture() as drawn:
        console.print(view)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
