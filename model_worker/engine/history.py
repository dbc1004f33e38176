"""When and in which steps of the device a request ran: what its trace shows. Kept only for requests that are traced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class Preemption(NamedTuple):
    """A time when a sequence lost its blocks."""

    at: float
    """By the clock of the timeline."""
    mode: Literal["recompute", "swap"]


@dataclass(slots=True)
class History:
    """Of one request, all its samples together. The engine's thread writes; others read when the request has ended.

    Attributes:
        clock: the timeline's.
        ranges: the steps it ran in, as [first, last] of each unbroken run.
        preemptions: in order.
    """

    clock: Callable[[], float]
    ranges: list[list[int]] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)

    def ran(self, step: int) -> None:
        """Note a step; samples that run in the same one may both tell."""
        ranges = self.ranges
        if ranges and step <= ranges[-1][1] + 1:
            ranges[-1][1] = max(step, ranges[-1][1])
        else:
            ranges.append([step, step])

    def preempted(self, mode: Literal["recompute", "swap"]) -> None:
        """Note the loss of blocks now."""
        self.preemptions.append(Preemption(self.clock(), mode))

    @property
    def steps(self) -> list[str]:
        """The ranges as text, such as ``12-40`` and ``44``."""
        return [f"{first}-{last}" if last > first else str(first) for first, last in self.ranges]
