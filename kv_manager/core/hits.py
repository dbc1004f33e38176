"""Finding the blocks that hold a prefix already (design 3.2, 3.7, 3.10)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kv_manager.core.block_pool import NULL_BLOCK
from kv_manager.core.sequence import Sequence
from kv_manager.core.windows import first_visible_block

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


@dataclass(frozen=True, slots=True)
class Hits:
    """The start of a prompt as the cache has it.

    Attributes:
        table: the blocks from the prompt's start on; null where the window hides them from all that is computed.
        digests: the prompt's digests, as far as they had to be made.
    """

    table: list[int]
    digests: list[bytes]


def prompt_hits(pool: "Pool", digests: Iterable[bytes], length: int, holder_of: Callable[[bytes], int]) -> Hits:
    """The longest cached start of a prompt.

    Args:
        digests: those of its full blocks; no more are taken than are needed.
        length: its tokens.
        holder_of: the block that holds a digest as far as the asker may know, 0 for none.
    """
    if pool.window is not None:
        every = list(digests)
        return Hits(_windowed_hits(pool, [holder_of(digest) for digest in every], length), every)
    table, found = [], []
    for digest in digests:
        block = holder_of(digest)
        if not block:
            break
        table.append(block)
        found.append(digest)
    return Hits(table, found)


def _windowed_hits(pool: "Pool", holders: list[int], length: int) -> list[int]:
    """The largest k such that every block of the first k that the next query can see is cached.

    block     0 ............ visible ............ k
              | null        | all must be cached | computed
    """
    assert pool.window is not None
    best, cached_run = 0, 0
    for k, holder in enumerate(holders, start=1):
        cached_run = cached_run + 1 if holder else 0
        visible = first_visible_block(min(k * pool.block_size, length - 1), pool.window, pool.block_size)
        if cached_run >= k - visible:
            best = k
    hidden = first_visible_block(min(best * pool.block_size, length - 1), pool.window, pool.block_size) if best else 0
    return [NULL_BLOCK] * hidden + holders[hidden:best]


def late_hits(pool: "Pool", sequence: Sequence) -> list[int]:
    """The next full blocks of a prompt that somebody else has filled since its last chunk.

    Only where the table ends at the granted length: a block already granted would have to be given back, and only below
    the known ids.
    """
    block_size, granted = pool.block_size, sequence.granted
    if sequence.known < granted + block_size or len(sequence.table) * block_size != granted:
        return []
    hits: list[int] = []
    index = granted // block_size
    while (index + 1) * block_size <= sequence.known:
        block = pool.blocks.first_holder(sequence.chain_to(index + 1, block_size)[index])
        if not block:
            break
        hits.append(block)
        index += 1
    return hits
