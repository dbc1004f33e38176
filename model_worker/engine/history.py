"""When and in which steps of the device a request ran: what its trace shows. Kept only for requests that are traced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class Preemption(NamedTuple):
    """A time when a sequence lost its blocks."""

    at: float
    """By the clock of the timeline."""
    mode: Literal["recompute", "swap"]


class Ranges:
    """Ascending numbers, kept as the [first, last] of each unbroken run."""

    def __init__(self) -> None:
        self._runs: list[list[int]] = []

    def add(self, number: int) -> None:
        """Add the last number once more, or a greater one."""
        runs = self._runs
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._runs)

    def __str__(self) -> str:
        return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in self._runs)


@dataclass(slots=True)
class History:
    """Of one request, all its samples together. The engine's thread writes; others read when the request has ended.

    Attributes:
        clock: the timeline's.
        device_steps: the steps of this worker that it ran in, the first one being 1.
        manager_steps: the steps of the pool's epoch that granted them; a quiet one grants several.
        preemptions: in order.
    """

    clock: Callable[[], float]
    device_steps: Ranges = field(default_factory=Ranges)
    manager_steps: Ranges = field(default_factory=Ranges)
    preemptions: list[Preemption] = field(default_factory=list)

    def ran(self, device_step: int, manager_step: int) -> None:
        """Note a step; each of the samples that run in it may tell."""
        self.device_steps.add(device_step)
        self.manager_steps.add(manager_step)

    def preempted(self, mode: Literal["recompute", "swap"]) -> None:
        """Note the loss of blocks now."""
        self.preemptions.append(Preemption(self.clock(), mode))
