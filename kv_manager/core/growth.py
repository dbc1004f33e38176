"""Advances: running sequences grow, best rank first (rule 3)."""

from typing import TYPE_CHECKING

from kv_manager.core.sequence import Sequence
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool, StepWork


def serve(pool: "Pool", work: "StepWork") -> None:
    """Serve the advances of the request by rank, whatever their order in it."""
    advances = work.request.advances
    if not advances.seqs:
        return
    sequences = pool.sequences
    rows = [(sequences[seq], length) for seq, length in zip(advances.seqs, advances.num_tokens, strict=True)]
    rows.sort(key=_rank)
    for sequence, length in rows:
        _advance(pool, work, sequence, length)


def _rank(row: tuple[Sequence, int]) -> tuple[int, int, int, int]:
    sequence = row[0]
    return (*sequence.rank, sequence.id)


def _advance(pool: "Pool", work: "StepWork", sequence: Sequence, length: int) -> None:
    """Let ``sequence`` hold ``length`` tokens: a copy of the block it writes first if that is shared, then new blocks.

    table index   0 ............ write ............ len(table) ........ ceil(length / block_size)
                  | as it is   | copied if shared | as it is | taken                           |
    """
    blocks, table, block_size = pool.blocks, sequence.table, pool.block_size
    write = sequence.next_write() // block_size
    end = -(-length // block_size)
    must_copy = write < len(table) and pool.is_shared(table[write])
    needed = must_copy + max(0, end - len(table))
    if end > blocks.num_blocks:
        _reject(pool, work, sequence, end)
        return
    if needed > blocks.available:
        work.stalled = True
        work.response.waiting.add(seq=sequence.id, reason=steps_pb2.WAITING_REASON_POOL, needed=needed)
        return
    if must_copy:
        _copy_on_write(pool, work, sequence, write)
    first_index = len(table)
    taken = [blocks.take() for _ in range(end - first_index)]
    table += taken
    work.response.grants.add(seq=sequence.id, first_index=first_index, blocks=taken, granted_tokens=length)
    sequence.granted = max(sequence.granted, length)
    pool.index_written(sequence, work.step)


def _copy_on_write(pool: "Pool", work: "StepWork", sequence: Sequence, index: int) -> None:
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


def _reject(pool: "Pool", work: "StepWork", sequence: Sequence, needed: int) -> None:
    """Release a sequence whose next token outgrows the pool (design 3.4)."""
    work.response.rejected.add(
        seq=sequence.id,
        needed=needed,
        available=pool.blocks.num_blocks,
        reason=steps_pb2.REJECTED_REASON_POOL,
    )
    del pool.sequences[sequence.id]
    pool.blocks.drop_table(sequence.table, work.release_fence)
    pool.totals.rejected_sequences += 1
