"""Pictures, as PNG or SVG by the file's name. matplotlib is only needed here: ``pip install 'octavo[plots]'``.

The same figures make the same bytes: no date, and no random ids in an SVG.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.failures import CliError
from cli.simulate.experiments import Measured
from cli.simulate.hit_curve import Curve
from cli.simulate.hours import Hour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
# Okabe and Ito's colours: told apart by colour-blind people too. Line styles say the same once more.
COLOURS = {"tokens": "#0072B2", "reserved": "#E69F00", "internal": "#D55E00", "external": "#DDDDDD"}
LINES = [("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", ":"), ("#CC79A7", "-."), ("#E69F00", "--"), ("#000000", "-")]
LABELS = {
    "tokens": "tokens",
    "reserved": "reserved for later",
    "internal": "internal waste",
    "external": "free or external waste",
}


def check_plot(path: Path) -> None:
    """Refuse before a long run what could not be drawn after it.

    Raises:
        CliError: the name ends in neither of ``SUFFIXES``, its folder does not exist, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise CliError(f"{path}: pictures are {' or '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise CliError(f"{path}: no such folder")
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError as error:
        raise CliError(f"{error}: pictures need pip install 'octavo[plots]'") from error


def draw_comparison(runs: Sequence[Measured], path: Path) -> None:
    """Shares of the memory as bars, with the requests in the batch beside them."""
    figure = _figure(8, 0.8 + 0.5 * len(runs))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    names = [run.name for run in runs]
    starts = [0.0] * len(runs)
    for part, label in LABELS.items():
        widths = [100 * getattr(run.averages.shares, part) for run in runs]
        left.barh(names, widths, left=starts, color=COLOURS[part], label=label)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    left.set(xlabel="% of the memory", xlim=(0, 100))
    left.invert_yaxis()
    right.bar_label(right.barh(names, [run.averages.batch for run in runs], color=COLOURS["tokens"]), fmt="%.1f")
    right.set(xlabel="requests in the batch")
    figure.legend(loc="outside upper center", ncols=len(LABELS), frameon=False)
    _save(figure, path)


def draw_curve(curve: Curve, path: Path) -> None:
    """Hit rates over capacity, a line for each policy, and the bound of an unbounded pool."""
    figure = _figure(7, 4.5)
    axes = figure.subplots()
    blocks = [point.blocks for point in curve.points]
    for (colour, style), name in zip(LINES, curve.points[0].rates() if curve.points else (), strict=False):
        rates = [100 * point.rates()[name] for point in curve.points]
        label = "KV manager (LRU)" if name == "manager" else f"{name}, model"
        width = 2.5 if name == "manager" else 1.2
        axes.plot(blocks, rates, color=colour, linestyle=style, linewidth=width, marker=".", label=label)
    bound = 100 * curve.unbounded.rate
    axes.axhline(bound, color="#666666", linewidth=0.8)
    axes.annotate(f"unbounded {bound:.2f} %", (blocks[0] if blocks else 1, bound), (0, 4), textcoords="offset points")
    axes.set(xscale="log", xlabel="blocks of 512 tokens", ylabel="full blocks found, %", ylim=(0, None))
    axes.legend(loc="lower right", frameon=False)
    _save(figure, path)


def draw_hours(hours: Sequence[Hour], path: Path) -> None:
    """A column for each memory and pace: the batch, what the paged memory holds, waste, and who was preempted."""
    cases = list(dict.fromkeys(hour.case for hour in hours))
    figure = _figure(5 * len(cases) + 0.5, 8.5)
    grid = figure.subplots(4, len(cases), sharex="col", sharey="row", squeeze=False, height_ratios=(3, 3, 2, 2))
    for column, case in enumerate(cases):
        shown = [hour for hour in hours if hour.case == case]
        axes = grid[:, column]
        axes[0].set_title(case)
        _batches(axes[0], shown)
        _holdings(axes[1], shown[0])
        _waste(axes[2], shown)
        _preemptions(axes[3], shown[0])
        # An allocator that falls behind takes hours more; what it does in them is what it did before.
        axes[3].set(xlabel="minutes", xlim=(0, 1.25 * max(_minutes(shown[0]))))
    most = max((moment.preempted for hour in hours for moment in hour.timeline.moments), default=0)
    grid[3, 0].set_ylim(0, 1.1 * most or 1)
    labels = ("requests in the batch", "paged memory, %", "reserved +\ninternal, %", "preempted\na minute")
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    for row in grid[:3, -1]:
        row.legend(loc="upper right", fontsize="small", framealpha=0.8)
    figure.align_ylabels(grid[:, 0])
    _save(figure, path)


def _minutes(hour: Hour) -> list[float]:
    return [moment.at / 60 for moment in hour.timeline.moments]


def _batches(axes: "Axes", hours: Sequence[Hour]) -> None:
    for (colour, style), hour in zip(LINES, hours, strict=False):
        running = [moment.running for moment in hour.timeline.moments]
        axes.plot(_minutes(hour), running, color=colour, linestyle=style, label=hour.measured.name)


def _holdings(axes: "Axes", hour: Hour) -> None:
    parts = [[100 * getattr(moment.shares, part) for moment in hour.timeline.moments] for part in LABELS]
    axes.stackplot(_minutes(hour), *parts, labels=list(LABELS.values()), colors=[COLOURS[part] for part in LABELS])
    axes.set_ylim(0, 100)


def _waste(axes: "Axes", hours: Sequence[Hour]) -> None:
    for (colour, style), hour in zip(LINES, hours, strict=False):
        wasted = [100 * (moment.shares.internal + moment.shares.reserved) for moment in hour.timeline.moments]
        axes.plot(_minutes(hour), wasted, color=colour, linestyle=style, label=hour.measured.name)
    axes.set_ylim(0, 100)


def _preemptions(axes: "Axes", hour: Hour) -> None:
    preempted = [moment.preempted for moment in hour.timeline.moments]
    axes.bar(_minutes(hour), preempted, width=0.9 * hour.timeline.stretch / 60, color=COLOURS["internal"])


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path) -> None:
    import matplotlib

    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "octavo", "svg.fonttype": "none"}):
        figure.savefig(path, metadata=metadata, dpi=150)
