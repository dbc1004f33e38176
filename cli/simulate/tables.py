"""The tables that ``octavo simulate`` prints."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.simulate.experiments import Measured
from cli.simulate.hit_curve import Curve
from cli.simulate.hours import Hour
from cli.simulate.paper import Figure

SHARES = ("tokens %", "reserved %", "internal %", "external %")


def comparison(runs: Iterable[Measured]) -> Table:
    """Allocators side by side."""
    table = _table(
        "allocator", "tokens %", "reserved %", "internal %", "external %", "batch", "requests/s", "preempted"
    )
    shared = False
    rows = []
    for run in runs:
        averages = run.averages
        shares = averages.shares
        parts = (shares.tokens, shares.reserved, shares.internal, shares.external)
        row = [run.name, *(f"{100 * part:.1f}" for part in parts), f"{averages.batch:.2f}"]
        rows.append([*row, f"{averages.throughput:.2f}", str(run.preempted), f"{100 * averages.sharing_saved:.1f}"])
        shared = shared or averages.sharing_saved > 0
    if shared:
        table.add_column("shared %", justify="right")
    for row in rows:
        table.add_row(*row if shared else row[:-1])
    return table


def paper(figures: Iterable[Figure]) -> Table:
    """Our figures beside the published ones."""
    table = _table("", "published", "ours", "must lie in", "")
    for section, rows in groupby(figures, key=lambda figure: figure.section):
        table.add_row(Text(section, style="bold"))
        for figure in rows:
            published = "-" if figure.published is None else f"{figure.published:.{figure.digits}f}"
            bounds = "-" if figure.bounds is None else f"{figure.bounds.low:.1f} to {figure.bounds.high:.1f}"
            verdict = "" if figure.bounds is None else "[green]yes" if figure.holds else "[red]no"
            table.add_row(f"  {figure.name}", published, f"{figure.ours:.{figure.digits}f}", bounds, verdict)
        table.add_section()
    return table


def curve(found: Curve) -> RenderableType:
    """Hits of a trace by capacity."""
    lines = [
        f"unbounded pool: {found.unbounded.hits:,} of {found.unbounded.references:,} full blocks found, "
        f"{100 * found.unbounded.rate:.3f} %",
        f"every prompt padded to whole blocks: {found.padded.hits:,} of {found.padded.references:,}, "
        f"{100 * found.padded.rate:.2f} %",
    ]
    if not found.points:
        return Text("\n".join(lines))
    names = list(found.points[0].rates())
    table = _table("blocks", *(f"{name} %" for name in names))
    for point in found.points:
        table.add_row(f"{point.blocks:,}", *(f"{100 * rate:.2f}" for rate in point.rates().values()))
    return Group(Text("\n".join(lines)), table)


def hours(served: Sequence[Hour]) -> RenderableType:
    """How each run of the manager's went, a row for each stretch of time, and then all runs in short."""
    parts: list[RenderableType] = []
    for case, runs in groupby(served, key=lambda hour: hour.case):
        hour, *others = runs
        table = _table("minute", *SHARES, "batch", "queued", "preempted")
        table.title = f"{hour.measured.name}, {case}"
        for moment in hour.timeline.moments:
            shares = moment.shares
            held = (shares.tokens, shares.reserved, shares.internal, shares.external)
            table.add_row(
                f"{moment.at / 60:.1f}",
                *(f"{100 * part:.2f}" for part in held),
                f"{moment.running:.1f}",
                f"{moment.queued:.1f}",
                str(moment.preempted),
            )
        short = comparison([hour.measured, *(other.measured for other in others)])
        short.title = case
        parts += [table, short]
    return Group(*parts)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
