"""What a simulation found, to be printed, told as JSON or drawn."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cli.failures import CliError
from cli.simulate import plots, tables
from cli.simulate.beams import Survivors
from cli.simulate.choices import Choices
from cli.simulate.contiguous import PLACEMENTS, RESERVATIONS
from cli.simulate.experiments import Measured, run_contiguous, run_paged
from cli.simulate.hit_curve import default_capacities, hit_curve
from cli.simulate.hours import serve_trace
from cli.simulate.manager_port import ManagerPort
from cli.simulate.measuring import Window
from cli.simulate.paper import figures
from cli.simulate.progress import Bars
from cli.simulate.traces import Prompt, read_trace
from cli.simulate.workload import Request, drawn


@dataclass(frozen=True, slots=True)
class Report:
    """Figures, ready to be shown.

    Attributes:
        rows: for JSON.
        view: for a terminal.
        draw: for a file; None where there is no picture.
        holds: every figure keeps its bounds.
    """

    rows: Any
    view: RenderableType
    draw: Callable[[Path], None] | None = None
    holds: bool = True


def paper(port: ManagerPort, count: int, seed: int, bars: Bars) -> Report:
    """Our figures beside the published ones."""
    found = list(figures(port, count, seed, bars))
    rows = [{**figure._asdict(), "holds": figure.holds} for figure in found]
    counters = Text("every run's counters equal the manager's, and its invariants hold")
    return Report(rows, Group(tables.paper(found), counters), None, all(figure.holds for figure in found))


def of_lengths(port: ManagerPort, chosen: Choices, bars: Bars) -> Report:
    """Allocators side by side for drawn requests; groups of sequences by the manager alone, which can share."""
    requests = drawn(chosen.lengths, chosen.count, chosen.rate, chosen.seed)
    window = Window(chosen.count // 4, loaded=True) if not chosen.rate else Window()
    gib = chosen.memories[0]
    setting = chosen.setting(gib, chosen.block_sizes[0], window)
    runs: list[Measured] = []
    if chosen.width == 1:
        for placement in PLACEMENTS:
            for name in RESERVATIONS:
                watching = bars.watching(f"{name}, {placement}", len(requests))
                runs.append(run_contiguous(name, placement, requests, setting, watching))
    for block_size in chosen.block_sizes:
        survivors = Survivors(chosen.turnover, chosen.seed) if chosen.beams > 1 else None
        watching = bars.watching(f"paged, block {block_size}", len(requests))
        runs.append(run_paged(port, requests, chosen.setting(gib, block_size, window), survivors, watching))
    head = Text(
        f"{chosen.count:,} {chosen.lengths.name}-like requests, {setting.slots:,} tokens of memory, "
        f"{chosen.shape.name} on {chosen.device.name}"
    )
    return Report(
        [_row(run) for run in runs],
        Group(head, tables.comparison(runs)),
        lambda path: plots.draw_comparison(runs, path),
    )


def of_trace(port: ManagerPort, chosen: Choices, bars: Bars) -> Report:
    """An Azure trace served over time, or the hits of a Mooncake trace."""
    trace = read_trace(chosen.trace)
    trace = trace[: chosen.requests or len(trace)]
    if prompts := [each for each in trace if isinstance(each, Prompt)]:
        return _hits(port, prompts, chosen, bars)
    if requests := [each for each in trace if isinstance(each, Request)]:
        return _hours(port, requests, chosen, bars)
    raise CliError(f"{chosen.trace}: no requests")


def _hits(port: ManagerPort, prompts: list[Prompt], chosen: Choices, bars: Bars) -> Report:
    curve = hit_curve(port, prompts, chosen.capacities or default_capacities(prompts), chosen.seed, bars)
    head = Text(f"{len(prompts):,} prompts, {curve.unbounded.prompt_tokens:,} tokens")
    return Report(asdict(curve), Group(head, tables.curve(curve)), lambda path: plots.draw_curve(curve, path))


def _hours(port: ManagerPort, requests: list[Request], chosen: Choices, bars: Bars) -> Report:
    settings = [chosen.setting(gib, chosen.block_sizes[0], Window()) for gib in chosen.memories]
    hours = serve_trace(port, requests, settings, chosen.speeds, bars)
    rows = [
        {
            "speed": hour.speed,
            "slots": hour.slots,
            **_row(hour.measured),
            "moments": [asdict(each) for each in hour.timeline.moments],
        }
        for hour in hours
    ]
    head = Text(f"{len(requests):,} requests, {chosen.shape.name} on {chosen.device.name}")
    return Report(rows, Group(head, tables.hours(hours)), lambda path: plots.draw_hours(hours, path))


def _row(run: Measured) -> dict[str, Any]:
    averages = run.averages
    return {
        "allocator": run.name,
        "shares": asdict(averages.shares),
        "batch": averages.batch,
        "requests_per_second": averages.throughput,
        "sharing_saved": averages.sharing_saved,
        "preempted": run.preempted,
        "rejected": run.rejected,
    }
