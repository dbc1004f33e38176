"""The scenes in their order. Every one asks the manager for a step or two, and leaves a pool for the next."""

from collections.abc import Callable

from cli.tour import growing, scarcity
from cli.tour.pool import TourPool
from cli.tour.scene import Scene

SCENES: tuple[Callable[[TourPool], Scene], ...] = (
    growing.empty,
    growing.allocate,
    growing.append,
    growing.fork,
    growing.copy_on_write,
    growing.share,
    growing.found_whole,
    scarcity.run_out,
    scarcity.fill,
    scarcity.preempt,
    scarcity.free,
    scarcity.resume,
    scarcity.recompute,
    scarcity.again,
    scarcity.end,
)
