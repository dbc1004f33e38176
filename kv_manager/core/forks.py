"""Forks: children share their parent's blocks until somebody writes (design 3.3)."""

from typing import TYPE_CHECKING

from kv_manager.core.prefix import TOKEN_BYTES
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


def serve(pool: "Pool", work: StepWork) -> None:
    """Make every child of the request. Forks need no blocks and cannot fail."""
    for fork in work.request.forks:
        parent = pool.sequences[fork.parent]
        for seq in fork.children:
            child = _child_of(parent, seq, fork.num_tokens, pool.block_size)
            for block in child.table:
                if block:
                    pool.blocks.share(block)
            if child.quota is not None:
                child.quota.name(child.table)
            pool.add(child)
            pool.totals.forks += 1
        parent.fork_point = max(parent.fork_point, fork.num_tokens)


def _child_of(parent: Sequence, seq: int, num_tokens: int, block_size: int) -> Sequence:
    """A child that shares the first ``num_tokens`` tokens, the blocks that hold them and the ids known of them."""
    child = Sequence(seq, parent.group, parent.priority, parent.arrival, parent.root, parent.root_digest)
    child.append_ids(parent.ids[: num_tokens * TOKEN_BYTES])
    child.granted = child.fork_point = num_tokens
    full = num_tokens // block_size
    child.digests = parent.digests[:full]
    child.indexed = min(parent.indexed, full)
    child.unwritten = True
    child.null_blocks, child.quota = parent.null_blocks, parent.quota
    child.table = parent.table[: -(-num_tokens // block_size)]
    return child
