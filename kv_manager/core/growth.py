"""Advances: running sequences grow, best rank first (rule 3), the members of a group together (design 3.9)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kv_manager.core.capacity import find_blocks, reject
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


@dataclass(slots=True)
class Growth:
    """What one advance asks for.

    table index   0 ............ write ............ len(table) ........ ceil(length / block_size)
                  | as it is   | copied if shared | as it is | hits, then taken               |
    """

    sequence: Sequence
    length: int
    write: int = 0
    hits: list[int] = field(default_factory=list)
    cached_tokens: int = 0


def serve(pool: "Pool", work: StepWork) -> None:
    """Serve the advances of the request by rank, whatever their order in it."""
    advances = work.request.advances
    if not advances.seqs:
        return
    sequences = pool.sequences
    rows = [Growth(sequences[seq], length) for seq, length in zip(advances.seqs, advances.num_tokens, strict=True)]
    rows.sort(key=_order)
    start = 0
    while start < len(rows):
        group, end = rows[start].sequence.group, start + 1
        while end < len(rows) and rows[end].sequence.group == group:
            end += 1
        _grow(pool, work, rows[start:end])
        start = end


def _order(row: Growth) -> tuple[int, int, int, int]:
    sequence = row.sequence
    return sequence.priority, sequence.arrival, sequence.group, sequence.id


def _grow(pool: "Pool", work: StepWork, rows: list[Growth]) -> None:
    """Serve the advances of one group: all are granted, or all wait."""
    first = rows[0].sequence
    if first.id not in pool.sequences or not first.running:
        return  # preempted for a better rank earlier in this request
    for row in rows:
        row.write = row.sequence.next_write() // pool.block_size
    outgrown = _outgrows(pool, rows)
    if outgrown:
        reject(pool, work, first, outgrown, pool.blocks.num_blocks, steps_pb2.REJECTED_REASON_POOL)
    elif find_blocks(pool, work, [row.sequence for row in rows], lambda: _needed(pool, rows)):
        for row in rows:
            _grant(pool, work, row)


def _outgrows(pool: "Pool", rows: list[Growth]) -> int:
    """How many blocks the group would hold alone if that is more than the pool has, else 0."""
    if len(rows) == 1:
        held = -(-rows[0].length // pool.block_size)
    else:
        members = pool.members(rows[0].sequence.group)
        held = len({block for member in members for block in member.table if block}) + _needed(pool, rows)
    return held if held > pool.blocks.num_blocks else 0


def _needed(pool: "Pool", rows: list[Growth]) -> int:
    """Blocks to take: a copy for each writer of a shared block but the last one who may write it in place, new blocks.

    A block without a digest whose other owners all copy it away in this item stays with the last of them.
    """
    block_size = pool.block_size
    needed = 0
    gone: dict[int, int] = {}
    for row in rows:
        table = row.sequence.table
        if row.write < len(table):
            block = table[row.write]
            if pool.is_shared(block, gone.get(block, 0)):
                needed += 1
                gone[block] = gone.get(block, 0) + 1
        needed += max(0, -(-row.length // block_size) - len(table))
    return needed


def _grant(pool: "Pool", work: StepWork, row: Growth) -> None:
    """Copy the block it writes first if that is shared, then append new blocks. There is room."""
    blocks, sequence = pool.blocks, row.sequence
    table = sequence.table
    if row.write < len(table) and pool.is_shared(table[row.write]):
        _copy_on_write(pool, work, sequence, row.write)
    first_index = len(table)
    taken = [blocks.take() for _ in range(-(-row.length // pool.block_size) - first_index)]
    table += taken
    work.response.grants.add(seq=sequence.id, first_index=first_index, blocks=taken, granted_tokens=row.length)
    if row.length > sequence.granted:
        sequence.granted = row.length
    pool.index_written(sequence, work.step)


def _copy_on_write(pool: "Pool", work: StepWork, sequence: Sequence, index: int) -> None:
    """Give ``sequence`` a copy of its block ``index``. Both ends stay pinned until the copy's step has completed."""
    blocks, response = pool.blocks, work.response
    source, destination = sequence.table[index], blocks.take()
    blocks.pin(source, work.step)
    blocks.pin(destination, work.step)
    sequence.table[index] = destination
    blocks.drop(source, work.release_fence)
    response.copies.sources.append(source)
    response.copies.destinations.append(destination)
    response.replaced.seqs.append(sequence.id)
    response.replaced.indexes.append(index)
    response.replaced.blocks.append(destination)
    pool.totals.copied_blocks += 1
