"""Runs: one allocator, one stream of requests, and what is measured of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cli.simulate.beams import Survivors
from cli.simulate.contiguous import PLACEMENTS, RESERVATIONS, ContiguousMemory
from cli.simulate.costs import Costs
from cli.simulate.jobs import Memory
from cli.simulate.manager_port import AttachedPool, ManagerPort
from cli.simulate.measuring import Averages, Window, observers
from cli.simulate.paged import PagedMemory
from cli.simulate.scheduling import Limits, Scheduler, Step
from cli.simulate.workload import Request


@dataclass(frozen=True, slots=True)
class Setting:
    """What all allocators of a comparison have in common.

    Attributes:
        slots: tokens that the memory holds.
        max_tokens: the longest sequence that a request may become.
        watermark: share of the blocks that admissions leave free.
    """

    slots: int
    max_tokens: int
    block_size: int
    costs: Costs
    limits: Limits = field(default_factory=Limits)
    window: Window = field(default_factory=Window)
    watermark: float = 0.0


Observe = Callable[[Step], None]
Watching = Callable[[Memory], Observe]
"""Makes an observer for a memory, beside the averages."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run's outcome.

    Attributes:
        averages: over the setting's window; over all steps where none of them lies inside.
        rejected: requests that can never fit.
        preempted: preemptions over the whole run.
    """

    name: str
    averages: Averages
    rejected: int
    preempted: int


def run_contiguous(
    reservation: str, placement: str, requests: Sequence[Request], setting: Setting, watching: Watching | None = None
) -> Measured:
    """Serve ``requests`` from a contiguous allocator, named in ``RESERVATIONS`` and ``PLACEMENTS``."""
    memory = ContiguousMemory(
        setting.slots, setting.max_tokens, RESERVATIONS[reservation], PLACEMENTS[placement](setting.slots)
    )
    return _run(f"{reservation}, {placement}", memory, requests, setting, watching)


def run_paged(
    port: ManagerPort,
    requests: Sequence[Request],
    setting: Setting,
    survivors: Survivors | None = None,
    watching: Watching | None = None,
) -> Measured:
    """Serve ``requests`` from a pool of the KV manager behind ``port``.

    Raises:
        CliError: the manager's counters differ from those kept here, or its invariants do not hold.
    """
    num_blocks = setting.slots // setting.block_size
    pool = AttachedPool(port, num_blocks, setting.block_size, int(num_blocks * setting.watermark))
    try:
        memory = PagedMemory(pool, setting.slots, survivors)
        measured = _run(f"paged, block {setting.block_size}", memory, requests, setting, watching)
        memory.check()
    finally:
        pool.close()
    return measured


def _run(
    name: str, memory: Memory, requests: Sequence[Request], setting: Setting, watching: Watching | None
) -> Measured:
    averages, whole = Averages(memory, setting.window), Averages(memory, Window())
    preempted = 0

    def count(step: Step) -> None:
        nonlocal preempted
        preempted += step.preempted

    observe = observers(averages.observe, whole.observe, count, *([watching(memory)] if watching is not None else []))
    scheduler = Scheduler(memory, requests, setting.costs, setting.limits)
    scheduler.run(observe)
    return Measured(name, averages if averages.steps else whole, scheduler.rejected, preempted)
