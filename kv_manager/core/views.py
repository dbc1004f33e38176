"""What people see of a pool: summaries, tables, blocks. Nothing here changes anything."""

from collections.abc import Container, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from kv_manager.core.block_pool import NULL_BLOCK
from kv_manager.core.prefix import Root
from kv_manager.core.sequence import Sequence
from kv_manager.core.slices import SLICE_BLOCKS, Sliced
from octavo.kv.v1 import common_pb2, inspect_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

MAX_OWNERS = 64
"""Owners told per block: a prompt shared by thousands would make every answer about it huge."""
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


class Glance(NamedTuple):
    """One sequence at a glance, as it is when looked at."""

    seq: int
    running: bool
    granted: int
    known: int
    num_blocks: int
    group: int
    priority: int
    arrival: int
    root: Root

    @classmethod
    def of(cls, sequence: Sequence) -> "Glance":
        return cls(
            sequence.id,
            sequence.running,
            sequence.granted,
            sequence.known,
            len(sequence.table) or len(sequence.parked_table),
            sequence.group,
            sequence.priority,
            sequence.arrival,
            sequence.root,
        )

    def write(self, summary: inspect_pb2.SequenceSummary) -> None:
        """Say it in an empty message."""
        summary.seq = self.seq
        summary.state = inspect_pb2.SEQUENCE_STATE_RUNNING if self.running else inspect_pb2.SEQUENCE_STATE_SWAPPED
        summary.granted_tokens = self.granted
        summary.committed_tokens = self.known
        summary.num_blocks = self.num_blocks
        summary.group = self.group
        summary.priority = self.priority
        summary.arrival = self.arrival
        root = summary.root
        root.tenant, root.salt, root.adapter = self.root.tenant, self.root.salt, self.root.adapter


def sequence_summary(sequence: Sequence) -> inspect_pb2.SequenceSummary:
    """One sequence at a glance."""
    summary = inspect_pb2.SequenceSummary()
    Glance.of(sequence).write(summary)
    return summary


def preemptions(pool: "Pool") -> list[inspect_pb2.PreemptionRecord]:
    """The last preemptions, newest last."""
    return [inspect_pb2.PreemptionRecord(step=step, preempted=told) for step, told in pool.recent_preemptions]


def by_rank(pool: "Pool") -> list[Sequence]:
    """The live sequences, best rank first."""
    return sorted(pool.sequences.values(), key=lambda sequence: (*sequence.rank, sequence.id))


def find_owners(pool: "Pool", blocks: list[int], ref_counts: list[int], likely: dict[int, int]) -> dict[int, list[int]]:
    """Who names the referenced ones of some blocks: sequences by id, the first ones where there are many.

    Reference counts tell when all are found: what a step has granted or filled is at the ends of its own sequences'
    tables, and nobody else's is read.

    Args:
        likely: sequences to look through first, each from a table index on.
    """
    sequences = pool.sequences
    owners: dict[int, list[int]] = {block: [] for block, count in zip(blocks, ref_counts, strict=True) if count}
    references = missing = sum(ref_counts)
    for seq, first in likely.items():
        if sequence := sequences.get(seq):
            for block in filter(owners.__contains__, sequence.table[first:]):
                owners[block].append(seq)
                missing -= 1
    for seq, sequence in sequences.items() if missing else ():
        for block in filter(owners.__contains__, sequence.table[: likely.get(seq)]):
            owners[block].append(seq)
            missing -= 1
        if not missing:
            break
    if references > len(owners):
        for named in owners.values():
            named.sort()
            del named[MAX_OWNERS:]
    return owners


def blocks_in_slices(pool: "Pool", wanted: Seq[int]) -> Sliced[inspect_pb2.BlockInfo]:
    """Blocks in the order asked for, each as it is when its slice comes."""
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
    blocks, info = pool.blocks, inspect_pb2.BlockInfo()
    fence = blocks.fence[block]
    standing = fence if fence > blocks.completed_step else 0
    write_block(info, block, blocks.ref_count[block], blocks.digest[block], standing, owners)
    return info


def write_block(
    info: inspect_pb2.BlockInfo, block: int, references: int, digest: bytes | None, fence: int, owners: list[int] | None
) -> None:
    """Say in an empty message what a block is doing. Field by field, and none that says nothing: half the time of
    making the message at once.

    Args:
        fence: 0 for one that has fallen.
    """
    info.block = block
    if references:
        info.state = inspect_pb2.BLOCK_STATE_REFERENCED
        info.ref_count = references
    elif block == NULL_BLOCK:
        info.state = inspect_pb2.BLOCK_STATE_NULL
    elif fence:
        info.state = inspect_pb2.BLOCK_STATE_FENCED
    elif digest is None:
        info.state = inspect_pb2.BLOCK_STATE_FREE
    else:
        info.state = inspect_pb2.BLOCK_STATE_CACHED
    if owners:
        info.owners.extend(owners)
    if digest is not None:
        info.digest = digest
    if fence:
        info.fence = fence
