"""A trace served over time: by the manager's blocks, and beside them by contiguous regions of the same memory."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cli.simulate.experiments import Measured, Setting, run_contiguous, run_paged
from cli.simulate.jobs import Memory
from cli.simulate.manager_port import ManagerPort
from cli.simulate.measuring import Timeline, observers
from cli.simulate.progress import Bars
from cli.simulate.scheduling import Step
from cli.simulate.workload import Request, faster

STRETCH = 60.0
"""Seconds that are averaged to one point."""
CONTIGUOUS = ("maximum", "oracle")


@dataclass(frozen=True, slots=True)
class Hour:
    """A trace at one pace in one memory, by one allocator."""

    speed: float
    slots: int
    measured: Measured
    timeline: Timeline

    @property
    def case(self) -> str:
        """The memory and the pace."""
        pace = "the trace's own pace" if self.speed == 1 else f"{self.speed:g} times its pace"
        return f"{self.slots:,} tokens, {pace}"


def serve_trace(
    port: ManagerPort, requests: Sequence[Request], settings: Sequence[Setting], speeds: Sequence[float], bars: Bars
) -> list[Hour]:
    """Serve the trace in every setting at every pace: paged, and as ``CONTIGUOUS`` reserves."""
    hours: list[Hour] = []
    for setting, speed in itertools.product(settings, speeds):
        paced = faster(requests, speed)
        for name in ("paged", *CONTIGUOUS):
            recorder = _Recorder(bars.watching(f"{name}, {setting.slots:,} tokens, {speed:g} times", len(paced)))
            if name in CONTIGUOUS:
                measured = run_contiguous(name, "buddy", paced, setting, recorder.watch)
            else:
                measured = run_paged(port, paced, setting, watching=recorder.watch)
            hours.append(Hour(speed, setting.slots, measured, recorder.closed()))
    return hours


class _Recorder:
    """Makes the timeline of the memory that a run watches."""

    def __init__(self, bar: Callable[[Memory], Callable[[Step], None]]) -> None:
        self._bar = bar
        self._timelines: list[Timeline] = []

    def watch(self, memory: Memory) -> Callable[[Step], None]:
        timeline = Timeline(memory, STRETCH)
        self._timelines.append(timeline)
        return observers(timeline.observe, self._bar(memory))

    def closed(self) -> Timeline:
        (timeline,) = self._timelines
        timeline.close()
        return timeline
