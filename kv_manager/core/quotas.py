"""Quotas: how many distinct blocks a tenant's running sequences name (design 3.10)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kv_manager.core.preemption import candidates, preempt, worst
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


@dataclass(slots=True)
class Quota:
    """A tenant's limits and what it uses. Fenced blocks count for nobody.

    Attributes:
        soft: bounds admissions and resumes while another sequence of the tenant runs.
        hard: never exceeded after any request (I9).
        entries: table entries of running sequences by block.
    """

    tenant: str
    soft: int
    hard: int
    entries: dict[int, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        """Distinct blocks named."""
        return len(self.entries)

    def name(self, table: Iterable[int]) -> None:
        """A running sequence's table names these blocks from now on."""
        for block in table:
            if block:
                self.entries[block] = self.entries.get(block, 0) + 1

    def unname(self, table: Iterable[int]) -> None:
        """A running sequence's table names these blocks no longer."""
        for block in table:
            if block:
                self.entries[block] -= 1
                if not self.entries[block]:
                    del self.entries[block]

    def unnamed(self, blocks: Iterable[int]) -> int:
        """How many of these blocks the tenant does not use yet."""
        return len({block for block in blocks if block and block not in self.entries})


def hold_hard_limit(pool: "Pool", work: StepWork, quota: Quota, group: list[Sequence], need: Callable[[], int]) -> bool:
    """Keep ``need()`` more blocks within the hard limit; only the tenant's own sequences give way.

    What they free counts at once, fenced or not: the limit is about use, not about what can be granted. False when the
    group itself gave way.
    """
    requester = group[0]
    while quota.used + need() > quota.hard:
        victim = worst([each for each in candidates(pool, requester) if each.quota is quota])
        work.stopped_tenants.add(quota.tenant)
        preempt(pool, work, victim, requester, steps_pb2.PREEMPTION_REASON_TENANT_LIMIT)
        if victim.group == requester.group:
            return False
    return True


def admits(pool: "Pool", quota: Quota | None, needed: int, again: bool) -> bool:
    """Whether a tenant may take ``needed`` blocks for a sequence that comes in.

    One that comes back leaves a block spare for each of the tenant's running sequences and one for itself.
    """
    if quota is None:
        return True
    running = sum(1 for each in pool.running() if each.quota is quota)
    if not running:
        return quota.used + needed <= quota.hard
    spare = running + 1 if again else 0
    return quota.used + needed <= quota.soft and quota.used + needed + spare <= quota.hard


def refuses(pool: "Pool", work: StepWork, quota: Quota | None, needed: int, again: bool) -> bool:
    """Whether a sequence that comes in must wait for its tenant's others; that stops those behind it of the tenant."""
    if quota is None or (quota.tenant not in work.stopped_tenants and admits(pool, quota, needed, again)):
        return False
    work.stopped_tenants.add(quota.tenant)
    return True
