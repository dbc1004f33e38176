"""Averages over the steps of a run, and what became of them over time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from cli.simulate.jobs import Memory, Usage
from cli.simulate.scheduling import Step


@dataclass(frozen=True, slots=True)
class Window:
    """Which steps count: from so many finished requests on, and, if it is ``loaded``, only while others wait."""

    warm_up: int = 0
    loaded: bool = False

    def counts(self, step: Step) -> bool:
        """Whether a step lies inside."""
        return step.finished >= self.warm_up and (step.queued > 0 or not self.loaded)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the memory, from 0 to 1; the four add up to 1."""

    tokens: float
    reserved: float
    internal: float
    external: float


@dataclass(slots=True)
class Averages:
    """Averages over steps, every step alike; rates are per simulated second."""

    memory: Memory
    window: Window
    steps: int = 0
    seconds: float = 0.0
    preempted: int = 0
    _sums: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    _running: int = 0
    _saved: int = 0
    _named: int = 0
    _first_finished: int = 0
    _finished: int = 0

    def observe(self, step: Step) -> None:
        """Take a step into account."""
        if not self.window.counts(step):
            return
        if not self.steps:
            self._first_finished = step.finished
        self.steps += 1
        self.seconds += step.seconds
        self.preempted += step.preempted
        self._running += step.running
        self._finished = step.finished
        saved, named = self.memory.saved()
        self._saved += saved
        self._named += named
        for index, slots in enumerate(self.memory.usage(step.table_tokens)):
            self._sums[index] += slots

    @property
    def batch(self) -> float:
        """Requests in the batch."""
        return self._running / max(1, self.steps)

    @property
    def shares(self) -> Shares:
        """What the memory holds."""
        return shares_of(Usage(*self._sums))

    @property
    def filled(self) -> float:
        """Slots that hold a token, of those that are anybody's."""
        tokens, reserved, internal, _ = self._sums
        return tokens / max(1, tokens + reserved + internal)

    @property
    def sharing_saved(self) -> float:
        """Blocks saved by sharing, of those that all sequences would fill if each had its own."""
        return self._saved / max(1, self._named)

    @property
    def throughput(self) -> float:
        """Requests finished a second."""
        return (self._finished - self._first_finished) / self.seconds if self.seconds else 0.0


def shares_of(usage: Usage) -> Shares:
    """Shares of all slots."""
    total = max(1, sum(usage))
    return Shares(*(slots / total for slots in usage))


@dataclass(slots=True)
class Moment:
    """Averages over one stretch of time, weighted by how long steps took.

    Attributes:
        at: seconds since the start, in the middle.
        running: requests in the batch.
        queued: requests that wait.
        preempted: requests preempted in it.
        shares: what the memory held.
    """

    at: float
    running: float
    queued: float
    preempted: int
    shares: Shares


@dataclass(slots=True)
class Timeline:
    """A run over time, in stretches of equal length. Stretches in which no step ended are left out."""

    memory: Memory
    stretch: float
    moments: list[Moment] = field(default_factory=list)
    _index: int = 0
    _weight: float = 0.0
    _running: float = 0.0
    _queued: float = 0.0
    _preempted: int = 0
    _slots: list[float] = field(default_factory=lambda: [0.0] * 4)

    def observe(self, step: Step) -> None:
        """Take a step into account."""
        index = int(step.clock // self.stretch)
        if index != self._index:
            self.close()
            self._index = index
        self._weight += step.seconds
        self._running += step.seconds * step.running
        self._queued += step.seconds * step.queued
        self._preempted += step.preempted
        for place, slots in enumerate(self.memory.usage(step.table_tokens)):
            self._slots[place] += step.seconds * slots

    def close(self) -> None:
        """End the stretch under way."""
        if self._weight:
            total = sum(self._slots)
            self.moments.append(
                Moment(
                    (self._index + 0.5) * self.stretch,
                    self._running / self._weight,
                    self._queued / self._weight,
                    self._preempted,
                    Shares(*(slots / total for slots in self._slots)),
                )
            )
        self._weight = self._running = self._queued = 0.0
        self._preempted = 0
        self._slots = [0.0] * 4


def observers(*each: Callable[[Step], None]) -> Callable[[Step], None]:
    """All of them as one."""

    def observe(step: Step) -> None:
        for observer in each:
            observer(step)

    return observe
