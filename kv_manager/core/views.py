"""What people see of a pool: summaries, tables, blocks. Nothing here changes anything."""

import itertools
from collections.abc import Container, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import TYPE_CHECKING

from kv_manager.core.block_pool import NULL_BLOCK
from kv_manager.core.sequence import Sequence
from kv_manager.core.slices import SLICE_BLOCKS, Sliced
from octavo.kv.v1 import common_pb2, inspect_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

MAX_OWNERS = 64
"""Owners told per block: a prompt shared by thousands would make every answer about it huge."""
_NOBODY: list[int] = []
OWNERS_SLICE = 1_024
"""Table entries looked at between two pauses."""


def stats(pool: "Pool") -> common_pb2.PoolStats:
    """Blocks by state, now."""
    message = common_pb2.PoolStats()
    pool.fill_stats(message)
    return message


def totals(pool: "Pool") -> common_pb2.PoolTotals:
    """What the pool has done since Attach."""
    return common_pb2.PoolTotals(
        **asdict(pool.totals),
        granted_blocks=pool.blocks.granted_blocks,
        evicted_blocks=pool.blocks.evicted_blocks,
    )


def sequence_summary(pool: "Pool", sequence: Sequence) -> inspect_pb2.SequenceSummary:
    """One sequence at a glance."""
    root = sequence.root
    return inspect_pb2.SequenceSummary(
        seq=sequence.id,
        state=inspect_pb2.SEQUENCE_STATE_RUNNING if sequence.running else inspect_pb2.SEQUENCE_STATE_SWAPPED,
        granted_tokens=sequence.granted,
        committed_tokens=sequence.known,
        num_blocks=len(sequence.table) or len(sequence.parked_table),
        group=sequence.group,
        priority=sequence.priority,
        arrival=sequence.arrival,
        root=common_pb2.PrefixRoot(tenant=root.tenant, salt=root.salt, adapter=root.adapter),
    )


def preemptions(pool: "Pool") -> list[inspect_pb2.PreemptionRecord]:
    """The last preemptions, newest last."""
    return [inspect_pb2.PreemptionRecord(step=step, preempted=told) for step, told in pool.recent_preemptions]


def by_rank(pool: "Pool") -> list[Sequence]:
    """The live sequences, best rank first."""
    return sorted(pool.sequences.values(), key=lambda sequence: (*sequence.rank, sequence.id))


def block_infos(pool: "Pool", wanted: Iterable[int], likely: Iterable[int] = ()) -> list[inspect_pb2.BlockInfo]:
    """Blocks as they are now, in the order asked for.

    Args:
        likely: sequences to look for their owners among first. Reference counts tell when all are found: where a step
            has granted blocks its own sequences are, and nobody else's table is read.
    """
    ids, ref_count = list(wanted), pool.blocks.ref_count
    # Most of what a step changes is free now: a table is read for referenced blocks alone.
    owners: dict[int, list[int]] = {block: [] for block in ids if ref_count[block]}
    missing = sum([ref_count[block] for block in owners])
    first = dict.fromkeys(likely)
    rest = (seq for seq in pool.sequences if seq not in first)
    for seq in itertools.chain(first, rest):
        if not missing:
            break
        sequence = pool.sequences.get(seq)
        for block in sequence.table if sequence is not None else ():
            if block in owners:
                owners[block].append(seq)
                missing -= 1
    for named in owners.values():
        if len(named) > 1:
            named.sort()
            del named[MAX_OWNERS:]
    return [block_info(pool, block, owners.get(block, _NOBODY)) for block in ids]


def blocks_in_slices(pool: "Pool", wanted: Seq[int]) -> Sliced[inspect_pb2.BlockInfo]:
    """As ``block_infos``, each block as it is when its slice comes."""
    owners: dict[int, list[int]] = {}
    yield from note_owners(pool, owners, wanted if isinstance(wanted, range) else frozenset(wanted))
    for count, block in enumerate(wanted, start=1):
        yield block_info(pool, block, owners.get(block, []))
        if count % SLICE_BLOCKS == 0:
            yield None


def note_owners(pool: "Pool", owners: dict[int, list[int]], wanted: Container[int]) -> Iterator[None]:
    """Note who names the ``wanted`` blocks, in slices."""
    looked = 0
    for sequence in _by_id(pool):
        for start in range(0, len(sequence.table), OWNERS_SLICE):
            part = sequence.table[start : start + OWNERS_SLICE]
            for block in part:
                if block != NULL_BLOCK and block in wanted and len(told := owners.setdefault(block, [])) < MAX_OWNERS:
                    told.append(sequence.id)
            looked += len(part)
            if looked >= OWNERS_SLICE:
                looked = 0
                yield None


def _by_id(pool: "Pool") -> list[Sequence]:
    return sorted(pool.sequences.values(), key=lambda each: each.id)


def block_info(pool: "Pool", block: int, owners: list[int]) -> inspect_pb2.BlockInfo:
    """One block as it is now.

    Args:
        owners: the sequences whose tables name it.
    """
    blocks = pool.blocks
    info = inspect_pb2.BlockInfo(block=block, state=_state_of(pool, block))
    # Fields that say nothing cost a third of the message's making.
    if owners:
        info.owners.extend(owners)
    if references := blocks.ref_count[block]:
        info.ref_count = references
    if (digest := blocks.digest[block]) is not None:
        info.digest = digest
    if (fence := blocks.fence[block]) > blocks.completed_step:
        info.fence = fence
    return info


def _state_of(pool: "Pool", block: int) -> inspect_pb2.BlockState:
    blocks = pool.blocks
    if block == NULL_BLOCK:
        return inspect_pb2.BLOCK_STATE_NULL
    if blocks.ref_count[block]:
        return inspect_pb2.BLOCK_STATE_REFERENCED
    if not blocks.in_free_list(block):
        return inspect_pb2.BLOCK_STATE_FENCED
    return inspect_pb2.BLOCK_STATE_FREE if blocks.digest[block] is None else inspect_pb2.BLOCK_STATE_CACHED
