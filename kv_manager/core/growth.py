"""Advances: running sequences grow, best rank first (rule 3), the members of a group together (design 3.9)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kv_manager.core.capacity import find_blocks, reject
from kv_manager.core.hits import late_hits
from kv_manager.core.quotas import hold_hard_limit
from kv_manager.core.sequence import Rank, Sequence
from kv_manager.core.step_work import StepWork
from kv_manager.core.windows import slide
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


@dataclass(slots=True)
class Growth:
    """What one advance asks for.

    table index   0 ............ write ............ len(table) ........ ceil(length / block_size)
                  | as it is   | copied if shared | as it is | late hits, then blocks taken     |
    """

    sequence: Sequence
    length: int
    write: int = 0
    hits: list[int] | None = None
    cached_tokens: int = 0


Row = tuple[Rank, int, Sequence, int]
"""(rank, id, sequence, length it asks for): sorts by rank, then id."""


def serve(pool: "Pool", work: StepWork) -> None:
    """Serve the advances of the request by rank, whatever their order in it."""
    advances = work.request.advances
    sequences = pool.sequences
    rows = []
    for seq, length in zip(advances.seqs[:], advances.num_tokens[:], strict=True):
        sequence = sequences[seq]
        rows.append((sequence.rank, seq, sequence, length))
    rows.sort()
    start, count = 0, len(rows)
    while start < count:
        start = _decode(pool, work, rows, start)
        if start == count:
            break
        _, _, sequence, length = rows[start]
        start += 1
        members = [Growth(sequence, length)]
        while start < count and rows[start][2].group == sequence.group:
            members.append(Growth(rows[start][2], rows[start][3]))
            start += 1
        _grow(pool, work, members)


def _decode(pool: "Pool", work: StepWork, rows: list[Row], start: int) -> int:
    """The common case in short: rows of sequences of their own that decode past a block edge, with blocks to spare.

    Served exactly as ``_grow`` would. Returns the first row that is another case; nothing is done for it.
    """
    if pool.window is not None:
        return start
    blocks, groups, block_size = pool.blocks, pool.groups, pool.block_size
    available, take, add_grant = blocks.available, blocks.take, work.response.grants.add
    for index in range(start, len(rows)):
        _, seq, sequence, length = rows[index]
        table, known, granted = sequence.table, sequence.known, sequence.granted
        end = len(table)
        missing = -(-length // block_size) - end
        if (
            known > granted
            or missing > available
            or not table
            or sequence.quota is not None
            or len(groups[sequence.group]) > 1
        ):
            return index
        write = (known if known > sequence.fork_point else sequence.fork_point) // block_size
        if write < end and pool.is_shared(table[write]):
            return index
        grant = add_grant()
        grant.seq, grant.first_index, grant.granted_tokens = seq, end, length
        if missing == 1:
            block = take()
            table.append(block)
            grant.blocks.append(block)
            available -= 1
        elif missing > 0:
            taken = [take() for _ in range(missing)]
            table += taken
            grant.blocks.extend(taken)
            available -= missing
        sequence.unwritten = False
        if length > granted:
            sequence.granted = length
    return len(rows)


def _grow(pool: "Pool", work: StepWork, rows: list[Growth]) -> None:
    """Serve the advances of one group: all are granted, or all wait."""
    first = rows[0].sequence
    if pool.sequences.get(first.id) is not first or not first.running:
        return  # preempted for a better rank earlier in this request
    for row in rows:
        _plan(pool, work, row)

    def need() -> int:
        return _needed(pool, rows)

    held, quota = _held_alone(pool, rows), first.quota
    if held > pool.blocks.num_blocks:
        reject(pool, work, first, held, pool.blocks.num_blocks, steps_pb2.REJECTED_REASON_POOL)
        return
    if quota is not None and held > quota.hard:
        reject(pool, work, first, held, quota.hard, steps_pb2.REJECTED_REASON_TENANT_LIMIT)
        return
    group = [row.sequence for row in rows]
    if quota is not None and not hold_hard_limit(pool, work, quota, group, lambda: _named(pool, rows)):
        return
    if find_blocks(pool, work, group, need):
        for row in rows:
            for block in row.hits or ():
                pool.blocks.hit(block)  # all of them before the first block is taken
        for row in rows:
            _grant(pool, work, row)


def _plan(pool: "Pool", work: StepWork, row: Growth) -> None:
    """Slide the window, find late hits. A late hit keeps the budget: it moves the end as far as the start."""
    sequence = row.sequence
    if pool.window is not None:
        slide(pool, work, sequence, pool.window)
    row.write = sequence.next_write() // pool.block_size
    if sequence.known > sequence.granted and (hits := late_hits(pool, sequence)):
        row.hits = hits
        cached = sequence.granted + len(hits) * pool.block_size
        row.length = min(sequence.known, cached + row.length - sequence.granted)
        row.cached_tokens = min(cached, row.length - 1)


def _held_alone(pool: "Pool", rows: list[Growth]) -> int:
    """How many blocks the group would hold if nobody else were there."""
    if len(rows) == 1 and pool.window is None:
        return -(-rows[0].length // pool.block_size)
    members = pool.members(rows[0].sequence.group)
    held = {block for member in members for block in member.table if block}
    return len(held) + _copies(pool, rows) + _new_blocks(pool, rows) + sum(len(row.hits or ()) for row in rows)


def _needed(pool: "Pool", rows: list[Growth]) -> int:
    """Blocks to take from the free list: copies, new blocks, hits that lie there."""
    needed = _copies(pool, rows) + _new_blocks(pool, rows)
    for row in rows:
        if row.hits:
            needed += pool.blocks.count_in_free_list(row.hits)
    return needed


def _named(pool: "Pool", rows: list[Growth]) -> int:
    """Blocks that the tenant would use beyond those it uses, hits counted wherever they lie."""
    quota = rows[0].sequence.quota
    assert quota is not None
    hits = [block for row in rows for block in row.hits or ()]
    return _copies(pool, rows) + _new_blocks(pool, rows) + quota.unnamed(hits)


def _copies(pool: "Pool", rows: list[Growth]) -> int:
    """A copy for each writer of a shared block but the last one, who may write it in place.

    A block without a digest whose other owners all copy it away in this item stays with the last of them.
    """
    copies = 0
    leaving: dict[int, int] = {}
    for row in rows:
        table = row.sequence.table
        if row.write < len(table):
            block = table[row.write]
            gone = leaving.get(block, 0)
            if pool.is_shared(block, gone):
                copies += 1
                leaving[block] = gone + 1
    return copies


def _new_blocks(pool: "Pool", rows: list[Growth]) -> int:
    block_size = pool.block_size
    new = 0
    for row in rows:
        missing = -(-row.length // block_size) - len(row.sequence.table) - len(row.hits or ())
        if missing > 0:
            new += missing
    return new


def _grant(pool: "Pool", work: StepWork, row: Growth) -> None:
    """Copy the block it writes first if that is shared, then append hits and new blocks. There is room."""
    blocks, sequence, length = pool.blocks, row.sequence, row.length
    table = sequence.table
    if row.write < len(table) and pool.is_shared(table[row.write]):
        _copy_on_write(pool, work, sequence, row.write)
    first_index = len(table)
    appended = row.hits or []
    missing = -(-length // pool.block_size) - first_index - len(appended)
    if missing > 0:
        appended = appended + [blocks.take() for _ in range(missing)]
    table += appended
    if sequence.quota is not None:
        sequence.quota.name(appended)
    grant = work.response.grants.add(seq=sequence.id, first_index=first_index, blocks=appended, granted_tokens=length)
    if row.hits:
        sequence.hit_blocks = grant.hit_blocks = first_index + len(row.hits)
        grant.cached_tokens = row.cached_tokens
        pool.totals.late_hit_tokens += row.cached_tokens - sequence.granted
    sequence.unwritten = False
    if length > sequence.granted:
        sequence.granted = length
    pool.index_written(sequence, work.step)


def _copy_on_write(pool: "Pool", work: StepWork, sequence: Sequence, index: int) -> None:
    """Give ``sequence`` a copy of its block ``index``. Both ends stay pinned until the copy's step has completed."""
    blocks, response = pool.blocks, work.response
    source, destination = sequence.table[index], blocks.take()
    blocks.pin(source, work.step)
    blocks.pin(destination, work.step)
    sequence.table[index] = destination
    if sequence.quota is not None:
        sequence.quota.unname((source,))
        sequence.quota.name((destination,))
    blocks.drop(source, work.release_fence)
    response.copies.sources.append(source)
    response.copies.destinations.append(destination)
    response.replaced.seqs.append(sequence.id)
    response.replaced.indexes.append(index)
    response.replaced.blocks.append(destination)
    pool.totals.copied_blocks += 1
