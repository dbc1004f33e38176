"""Hit rates by capacity: the manager's own, and naive models of other policies beside an offline optimum."""

from collections.abc import Sequence
from dataclasses import dataclass

from cli.simulate.eviction import count_hits, policies
from cli.simulate.manager_port import ManagerPort
from cli.simulate.prefix_cache import Hits, enough_blocks, replay
from cli.simulate.progress import Bars
from cli.simulate.traces import Prompt

SMALLEST = 1_000
"""Blocks of the smallest pool of a curve, if the trace's prompts fit."""


@dataclass(frozen=True, slots=True)
class Point:
    """One capacity.

    Attributes:
        managed: what the manager found.
        modelled: hits by policy, from the naive models.
    """

    blocks: int
    managed: Hits
    modelled: dict[str, int]

    def rates(self) -> dict[str, float]:
        """Hit rates by policy, the manager's first."""
        modelled = {name: hits / max(1, self.managed.references) for name, hits in self.modelled.items()}
        return {"manager": self.managed.rate, **modelled}


@dataclass(frozen=True, slots=True)
class Curve:
    """A trace's hits.

    Attributes:
        unbounded: in a pool that never evicts.
        padded: the same with every prompt filled up to whole blocks.
        points: by capacity, ascending.
    """

    unbounded: Hits
    padded: Hits
    points: list[Point]


def hit_curve(port: ManagerPort, prompts: Sequence[Prompt], capacities: Sequence[int], seed: int, bars: Bars) -> Curve:
    """Play ``prompts`` against pools of ``capacities`` blocks and against unbounded ones."""

    def run(name: str, blocks: int = 0, padded: bool = False) -> Hits:
        return replay(port, prompts, blocks, padded, bars.counting(name, len(prompts)))

    unbounded, padded = run("unbounded"), run("unbounded, padded", padded=True)
    points = []
    for blocks in capacities:
        managed = run(f"{blocks} blocks", blocks)
        modelled = {name: count_hits(prompts, blocks, policy) for name, policy in policies(prompts, seed).items()}
        points.append(Point(blocks, managed, modelled))
    return Curve(unbounded, padded, points)


def default_capacities(prompts: Sequence[Prompt]) -> list[int]:
    """1, 2, 5, 10, ... thousands of blocks, below what holds everything; a small trace has tenths of what it needs."""
    enough = enough_blocks(prompts)
    steps = [SMALLEST * digit * 10**power for power in range(12) for digit in (1, 2, 5)]
    return [step for step in steps if step < enough] or [max(1, enough * tenth // 10) for tenth in range(1, 10, 2)]
