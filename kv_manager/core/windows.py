"""Windowed pools: blocks that no later query can see are given back (design 3.10)."""

from typing import TYPE_CHECKING

from kv_manager.core.block_pool import NULL_BLOCK
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


def first_visible_block(position: int, window: int, block_size: int) -> int:
    """The first block that a query at ``position`` reads: it sees the ``window`` positions that end with its own."""
    return max(0, position - window + 1) // block_size


def slide(pool: "Pool", work: StepWork, sequence: Sequence, window: int) -> None:
    """Replace by the null block what lies wholly behind the window of the next write.

    The worker is told even if the advance then waits. Rejected drafts may be written again, so the window follows the
    lowest possible write, not the length told.
    """
    table, replaced = sequence.table, work.response.replaced
    end = min(first_visible_block(sequence.next_write(), window, pool.block_size), len(table))
    for index in range(sequence.null_blocks, end):
        block = table[index]
        table[index] = NULL_BLOCK
        if sequence.quota is not None:
            sequence.quota.unname((block,))
        pool.blocks.drop(block, work.release_fence)
        replaced.seqs.append(sequence.id)
        replaced.indexes.append(index)
        replaced.blocks.append(NULL_BLOCK)
    sequence.null_blocks = max(sequence.null_blocks, end)
