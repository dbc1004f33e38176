"""How long the engine's steps and waits take. Written by the engine's thread alone."""

from dataclasses import dataclass, field

from service.histograms import Times


@dataclass(slots=True)
class EngineTimes:
    """Histograms in seconds.

    Attributes:
        step: a forward pass with what belongs to it.
        manager_wait: what was left to wait for the manager when the step before had ended.
    """

    step: Times = field(default_factory=Times)
    manager_wait: Times = field(default_factory=Times)
