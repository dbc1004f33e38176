"""Resumes: parked sequences come back from the host tier (design 3.4)."""

from typing import TYPE_CHECKING

from kv_manager.core.capacity import reject, tell_waiting, wait
from kv_manager.core.host_tier import NO_HOST_BLOCK
from kv_manager.core.quotas import refuses
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


def resume(pool: "Pool", work: StepWork, first: Sequence, lengths: dict[int, int]) -> None:
    """Bring back the whole group of ``first``, each member with the slot of its next token.

    Args:
        lengths: the lengths told by this request, by sequence; a member not told has the one the manager knows.
    """
    members = pool.members(first.group)
    told = {member.id: lengths.get(member.id) or _known_length(member) for member in members}
    if work.stalled:
        wait(work, members, steps_pb2.WAITING_REASON_BEHIND, 0)
        return
    if work.swap_fence and pool.host.parked[first.group] > pool.blocks.completed_step:
        wait(work, members, steps_pb2.WAITING_REASON_SWAPPING, 0)
        return
    parked = list(dict.fromkeys(block for member in members for block in member.parked_blocks()))
    needed = len(parked) + _next_slots(pool, members, told)
    if needed > pool.blocks.num_blocks:
        reject(pool, work, first, needed, pool.blocks.num_blocks, steps_pb2.REJECTED_REASON_POOL)
        return
    if first.quota is not None and needed > first.quota.hard:
        reject(pool, work, first, needed, first.quota.hard, steps_pb2.REJECTED_REASON_TENANT_LIMIT)
        return
    if refuses(pool, work, first.quota, needed, again=True):
        tell_waiting(work, members, steps_pb2.WAITING_REASON_TENANT_LIMIT, needed)
        return
    required = needed + pool.readmission_reserve()
    if required > pool.blocks.available:
        wait(work, members, pool.short_of(required), required)
        return
    _bring_back(pool, work, members, parked, told)


def _known_length(member: Sequence) -> int:
    """How long a member is that the request does not name: whatever granted steps wrote or commits told.

    It may have decoded past that within its table; naming it with its length is exact.
    """
    return max(1, member.granted, member.known)


def _next_slots(pool: "Pool", members: list[Sequence], told: dict[int, int]) -> int:
    """Blocks beside the parked ones: for next tokens, and for the copies that the next writes of a group will take."""
    block_size = pool.block_size
    new = sum(max(0, -(-(told[each.id] + 1) // block_size) - len(each.parked_table)) for each in members)
    writers: dict[int, int] = {}
    for member in members:
        last = member.parked_table[-1] if member.parked_table else NO_HOST_BLOCK
        if last != NO_HOST_BLOCK and told[member.id] % block_size:
            writers[last] = writers.get(last, 0) + 1
    return new + sum(count - 1 for count in writers.values())


def _bring_back(pool: "Pool", work: StepWork, members: list[Sequence], parked: list[int], told: dict[int, int]) -> None:
    blocks, moves = pool.blocks, work.response.swaps_in
    place = {block: blocks.take() for block in parked}
    moves.sources.extend(parked)
    moves.destinations.extend(place.values())
    named: set[int] = set()
    for member in members:
        table = [place.get(block, 0) for block in member.parked_table]
        for block in table:
            if block in named:
                blocks.share(block)
            elif block:
                named.add(block)
        pool.host.drop(member.parked_table, fence=work.step)
        member.unpark(table, told[member.id] + 1)
    del pool.host.parked[members[0].group]
    for member in members:
        while len(member.table) * pool.block_size <= told[member.id]:
            member.table.append(blocks.take())
        if member.quota is not None:
            member.quota.name(member.table)
        work.response.grants.add(seq=member.id, blocks=member.table, granted_tokens=member.granted)
    for member in members:
        pool.index_written(member, work.step)
    pool.totals.swapped_in_blocks += len(parked)
