"""Contiguous allocators, as serving systems had them before paging: one region per request, for its whole life.

Two choices are independent: how many slots to reserve (``RESERVATIONS``) and where to put them (``Placement``).
"""

import itertools
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cli.simulate.jobs import Job, Outcome, Plan, Usage
from cli.simulate.workload import Request

Reservation = Callable[[Request, int], int]
"""Slots to reserve for a request under a longest sequence of so many tokens."""


def maximum(request: Request, max_tokens: int) -> int:
    """As long as a sequence may become: nothing needs to be known."""
    return max_tokens


def power_of_two(request: Request, max_tokens: int) -> int:
    """The output within a factor of two: its length is known roughly."""
    return min(max_tokens, request.prompt_tokens + _power_of_two(request.output_tokens))


def oracle(request: Request, max_tokens: int) -> int:
    """Exactly what the request will fill: its length is known, as nobody can know it."""
    return request.kv_tokens


RESERVATIONS: dict[str, Reservation] = {"maximum": maximum, "power of two": power_of_two, "oracle": oracle}


class Placement(Protocol):
    """Finds regions. An offset and a size taken are given back together."""

    def take(self, size: int) -> tuple[int, int] | None:
        """(offset, slots taken), None when there is no room."""

    def give_back(self, offset: int, size: int) -> None:
        """Free a region."""


class Buddy:
    """A buddy allocator: regions are powers of two, halved on demand and merged with their other half when free.

    A memory that is no power of two starts as the regions of its binary digits, largest first.
    """

    def __init__(self, slots: int) -> None:
        self._free: list[set[int]] = [set() for _ in range(slots.bit_length())]
        offset = 0
        for order in reversed(range(slots.bit_length())):
            if slots >> order & 1:
                self._free[order].add(offset)
                offset += 1 << order

    def take(self, size: int) -> tuple[int, int] | None:
        """As ``Placement``; takes the smallest region that fits, the one at the lowest offset."""
        wanted = (size - 1).bit_length()
        for order in range(wanted, len(self._free)):
            if self._free[order]:
                offset = min(self._free[order])
                self._free[order].remove(offset)
                for half in reversed(range(wanted, order)):
                    self._free[half].add(offset + (1 << half))
                return offset, 1 << wanted
        return None

    def give_back(self, offset: int, size: int) -> None:
        """As ``Placement``. A region's other half differs from it in one bit of the offset: starts are aligned."""
        order = size.bit_length() - 1
        while (other := offset ^ (1 << order)) in self._free[order]:
            self._free[order].remove(other)
            offset = min(offset, other)
            order += 1
            if order == len(self._free):
                self._free.append(set())
        self._free[order].add(offset)


@dataclass(slots=True)
class FirstFit:
    """Any size at the lowest offset where it fits."""

    slots: int
    _taken: list[tuple[int, int]] = field(default_factory=list)

    def take(self, size: int) -> tuple[int, int] | None:
        """As ``Placement``."""
        edges = [(0, 0), *self._taken, (self.slots, 0)]
        for (offset, length), (following, _) in itertools.pairwise(edges):
            if following - offset - length >= size:
                insort(self._taken, (offset + length, size))
                return offset + length, size
        return None

    def give_back(self, offset: int, size: int) -> None:
        """As ``Placement``."""
        self._taken.remove((offset, size))


PLACEMENTS: dict[str, Callable[[int], Placement]] = {"buddy": Buddy, "first fit": FirstFit}


class ContiguousMemory:
    """A region per request; first come, first served, and whoever has a region keeps it to the end."""

    def __init__(self, slots: int, max_tokens: int, reservation: Reservation, placement: Placement) -> None:
        self.slots = slots
        self._max_tokens = max_tokens
        self._reservation = reservation
        self._placement = placement
        self._requested = 0
        self._final = 0

    def serve(self, plan: Plan) -> Outcome:
        """As ``Memory``. Growth and chunks need nothing; a request that outgrows the memory alone is rejected."""
        for job in plan.released:
            self._release(job)
        outcome, budget = Outcome(), plan.budget
        for job in itertools.islice(plan.queue, plan.max_admits):
            if budget <= 0:
                break
            requested = self._reservation(job.request, self._max_tokens)
            job.place = self._placement.take(requested)
            if job.place is None:
                if not self._requested and not outcome.admitted:
                    outcome.rejected.append(job)
                break
            self._requested += requested
            self._final += job.final
            end = min(job.prefill, budget)
            budget -= end
            outcome.admitted.append((job, 0, end))
        return outcome

    def _release(self, job: Job) -> None:
        if job.place is not None:
            self._placement.give_back(*job.place)
            self._requested -= self._reservation(job.request, self._max_tokens)
            self._final -= job.final
            job.place = None

    def asks_at(self, job: Job) -> int:
        """As ``Memory``: never."""
        return job.final + 1

    def usage(self, table_tokens: int) -> Usage:
        """As ``Memory``. What a buddy allocator rounds up counts as external, as in the published figure."""
        return Usage(
            tokens=table_tokens,
            reserved=self._final - table_tokens,
            internal=self._requested - self._final,
            external=self.slots - self._requested,
        )

    def saved(self) -> tuple[int, int]:
        """As ``Memory``: contiguous regions share nothing."""
        return 0, 0


def _power_of_two(tokens: int) -> int:
    return 1 << (tokens - 1).bit_length()
