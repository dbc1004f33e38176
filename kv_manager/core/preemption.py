"""Preemption: who gives way, how, and what it costs (design 3.4)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kv_manager.core.block_pool import NULL_BLOCK
from kv_manager.core.host_tier import NO_HOST_BLOCK
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


@dataclass(frozen=True, slots=True)
class Costs:
    """What it takes to bring a victim back, in seconds; 0 while the worker has told no rates."""

    recompute_seconds: float
    swap_seconds: float


def candidates(pool: "Pool", requester: Sequence) -> list[Sequence]:
    """Who may give way: the sequences that hold device blocks and rank no better than the requester, and itself.

    A child that was forked at 0 tokens holds none yet, and asks for its first.
    """
    rank = requester.rank
    return [each for each in pool.sequences.values() if (each.table or each is requester) and each.rank >= rank]


def worst(candidates: list[Sequence]) -> Sequence:
    """The worst-ranked candidate.

    One that was readmitted is exempt until an advance past its next token was granted, so that nobody is thrown out and
    brought back without a token in between; if all are exempt, none is.
    """
    progressed = [sequence for sequence in candidates if sequence.granted >= sequence.readmitted_to]
    return max(progressed or candidates, key=lambda sequence: sequence.rank)


def preempt(
    pool: "Pool", work: StepWork, victim: Sequence, requester: Sequence, reason: steps_pb2.PreemptionReason
) -> None:
    """Take the device blocks of the victim's whole group, by the cheaper mode that has room."""
    members = pool.members(victim.group)
    distinct = list(dict.fromkeys(block for member in members for block in member.table if block))
    costs = _price(pool, members, distinct)
    if costs.swap_seconds <= costs.recompute_seconds and _make_host_room(pool, work, len(distinct), requester):
        _swap_out(pool, work, members, distinct)
        mode = steps_pb2.PREEMPTION_MODE_SWAP
        pool.totals.swap_preemptions += len(members)
    else:
        for member in members:
            pool.remove(member)
            pool.drop_table(member, work.release_fence)
        mode = steps_pb2.PREEMPTION_MODE_RECOMPUTE
        pool.totals.recompute_preemptions += len(members)
    for member in members:
        _tell(pool, work, member, mode, reason, requester, costs)


def _price(pool: "Pool", members: list[Sequence], distinct: list[int]) -> Costs:
    """Both prices. Swapping costs nothing to plan with while no rates are known, infinity without room."""
    tier, rates = pool.host, pool.rates
    if len(distinct) > tier.num_blocks:
        swap_seconds = math.inf
    elif rates is None:
        swap_seconds = 0.0
    else:
        swap_seconds = 2 * len(distinct) * pool.spec.block_bytes / rates.copy_bytes_per_second
    recompute_seconds = 0.0
    if rates is not None:
        recompute_seconds = _lost_tokens(pool, members) / rates.prefill_tokens_per_second
    return Costs(recompute_seconds, swap_seconds)


def _lost_tokens(pool: "Pool", members: list[Sequence]) -> int:
    """Tokens to compute again. All the cache gives back for sure is a leading run of blocks that others go on using."""
    own: dict[int, int] = {}
    for member in members:
        for block in member.table:
            own[block] = own.get(block, 0) + 1
    blocks, block_size = pool.blocks, pool.block_size
    counted: set[int] = set()
    lost = 0
    for member in members:
        kept = True
        for index, block in enumerate(member.table):
            kept = kept and blocks.ref_count[block] > own[block] and blocks.digest[block] is not None
            if block != NULL_BLOCK and not kept and block not in counted:
                counted.add(block)
                lost += max(0, min(block_size, member.granted - index * block_size))
    return lost


def _make_host_room(pool: "Pool", work: StepWork, needed: int, requester: Sequence) -> bool:
    """Room for ``needed`` host blocks, if need be by dropping parked groups, least recently parked first.

    What a dropped group leaves can be used at once: nobody reads it any more, and swaps out of different steps into one
    host block run in order (rule 6). Those of one step do not, so a group that this step has parked stays.
    """
    tier = pool.host
    if needed == 0 or needed > tier.num_blocks:
        return False
    dropped: list[int] = []
    room = tier.free_blocks
    left: dict[int, int] = {}
    for group, parked_in in tier.parked.items():
        if room >= needed or parked_in == work.step:
            break
        dropped.append(group)
        for member in pool.members(group):
            for block in member.parked_blocks():
                left[block] = left.get(block, 0) + 1
                # Others may name it too: a worker has attached with such tables.
                room += left[block] == tier.references_of(block)
    if room < needed:
        return False
    for group in dropped:
        _drop_parked(pool, work, group, requester)
    return True


def _drop_parked(pool: "Pool", work: StepWork, group: int, requester: Sequence) -> None:
    costs = Costs(recompute_seconds=0.0, swap_seconds=math.inf)
    for member in pool.members(group):
        pool.remove(member)
        pool.host.drop(member.host_table or [], fence=0)
        pool.totals.host_dropped_sequences += 1
        reason = steps_pb2.PREEMPTION_REASON_HOST_ROOM
        _tell(pool, work, member, steps_pb2.PREEMPTION_MODE_RECOMPUTE, reason, requester, costs)


def _swap_out(pool: "Pool", work: StepWork, members: list[Sequence], distinct: list[int]) -> None:
    """Park a group. Each distinct block moves once, and sharing is kept in the host tables."""
    tier, moves = pool.host, work.response.swaps_out
    place = {block: tier.take() for block in distinct}
    place[NULL_BLOCK] = NO_HOST_BLOCK
    moves.sources.extend(distinct)
    moves.destinations.extend(place[block] for block in distinct)
    if work.swap_fence:
        for block in distinct:
            pool.blocks.pin_swap_source(block, work.swap_fence)
    for member in members:
        host_table = [place[block] for block in member.table]
        pool.drop_table(member, work.swap_fence)
        member.park(host_table)
        tier.share(host_table)
    tier.parked[members[0].group] = work.step
    pool.totals.swapped_out_blocks += len(distinct)


def _tell(
    pool: "Pool",
    work: StepWork,
    victim: Sequence,
    mode: steps_pb2.PreemptionMode,
    reason: steps_pb2.PreemptionReason,
    requester: Sequence,
    costs: Costs,
) -> None:
    told = steps_pb2.Preempted(
        seq=victim.id,
        mode=mode,
        reason=reason,
        requester=requester.id,
        recompute_seconds=costs.recompute_seconds,
        swap_seconds=costs.swap_seconds,
    )
    work.response.preempted.append(told)  # a copy: a part of the answer would keep the whole of it
    pool.recent_preemptions.append((work.step, told))
    pool.preemptions[mode, reason] += 1
