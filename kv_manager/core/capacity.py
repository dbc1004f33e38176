"""Finding blocks for running sequences: wait for the fence, or let somebody give way (design 3.4, 3.10)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kv_manager.core.preemption import candidates, preempt, worst
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

MAX_TOLD = (1 << 32) - 1
"""The largest count a message holds: what is needed for lengths near 2**32 is told as this many."""


def find_blocks(pool: "Pool", work: StepWork, group: list[Sequence], need: Callable[[], int]) -> bool:
    """Make ``need()`` blocks available for the members of a group that ask, all or none.

    ``need`` is asked again after each victim: a victim may have been the other owner of a block to copy, or may have
    put a block to hit into the free list. On False the members wait, or are victims themselves.
    """
    blocks = pool.blocks
    requester = group[0]
    while blocks.available < (needed := need()):
        coming = blocks.fenced_blocks - work.promised
        if blocks.available + coming >= needed:
            work.promised += needed - blocks.available
            wait(work, group, steps_pb2.WAITING_REASON_FENCE, needed)
            return False
        victim = worst(candidates(pool, requester))
        work.stalled = True
        preempt(pool, work, victim, requester, steps_pb2.PREEMPTION_REASON_POOL)
        if victim.group == requester.group:
            return False
    return True


def wait(work: StepWork, group: list[Sequence], reason: steps_pb2.WaitingReason, needed: int) -> None:
    """Nobody of the group is served; nothing has changed for them. Nobody is admitted behind them either."""
    work.stalled = True
    tell_waiting(work, group, reason, needed)


def tell_waiting(work: StepWork, group: list[Sequence], reason: steps_pb2.WaitingReason, needed: int) -> None:
    """Say that nobody of the group is served."""
    for sequence in group:
        work.response.waiting.add(seq=sequence.id, reason=reason, needed=needed)


def reject(
    pool: "Pool", work: StepWork, sequence: Sequence, needed: int, available: int, reason: steps_pb2.RejectedReason
) -> None:
    """Release the whole group of a sequence that can never go on."""
    needed = min(needed, MAX_TOLD)
    for member in pool.members(sequence.group):
        work.response.rejected.add(seq=member.id, needed=needed, available=available, reason=reason)
        pool.discard(member, work)
        pool.totals.rejected_sequences += 1
