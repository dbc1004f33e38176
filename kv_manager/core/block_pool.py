"""The blocks of one pool: free list, reference counts, digests, fences.

Block states (I1: every block but the null block is in exactly one):

    free        no digest, grantable: the stack of returned blocks, then the ids never used yet
    cached      a digest, grantable, hittable until granted: a queue, oldest first
    referenced  named by ref_count table entries
    fenced      no reference, but a step that must complete first may still use it

    grant order   | returned, last in first out | never used, ascending | cached, first in first out |
"""

from array import array
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kv_manager.core.prefix_index import PrefixIndex

if TYPE_CHECKING:
    from kv_manager.core.journal import Journal

NULL_BLOCK = 0
"""Never granted, hashed or counted; padding rows and writes below the write floor go there."""


Filled = tuple[int, bytes, bytes]
"""(block, the digest of what it is filled with, the digest before that in its chain)."""


class BlockPool:
    """Blocks ``1..num_blocks`` with O(1) take, return, hit and removal from the middle.

    Arrays instead of objects: 28 bytes per free block. ``_next`` links the stack of free blocks and, with
    ``_previous``, the ring of cached ones, whose sentinel is the null block. Ids that were never used lie in no list
    but in ranges, one to start with and one per gap between adopted blocks: so a pool of ten million blocks starts
    without filling a list, and is adopted and checked in time proportional to its tables.

    Attributes:
        ref_count: table entries that name the block.
        digest: the prefix digest the block holds, or None.
        fence: the step that must have completed before the block may be granted; also kept while it is referenced,
            since it counts again when the last reference goes.
        swap_sources: blocks that a swap-out under way reads, with its step.
        journal: hears what happens to blocks and digests while somebody watches, else None.
        unconfirmed: blocks whose digest was made visible by a step that has not completed, and that step.
    """

    __slots__ = (
        "_buckets",
        "_cached",
        "_fenced",
        "_fresh",
        "_fresh_end",
        "_gaps",
        "_next",
        "_num_unused",
        "_previous",
        "_published",
        "_returned",
        "_top",
        "completed_step",
        "digest",
        "evicted_blocks",
        "fence",
        "granted_blocks",
        "index",
        "journal",
        "num_blocks",
        "ref_count",
        "swap_sources",
        "unconfirmed",
    )

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._next = array("i", [0]) * (num_blocks + 1)
        self._previous = array("i", [0]) * (num_blocks + 1)
        self.ref_count = array("i", [0]) * (num_blocks + 1)
        self.fence = array("q", [0]) * (num_blocks + 1)
        self.digest: list[bytes | None] = [None] * (num_blocks + 1)
        self.index = PrefixIndex()
        self.unconfirmed: dict[int, int] = {}
        self._published: deque[tuple[int, list[Filled]]] = deque()
        self.journal: Journal | None = None
        self.swap_sources: dict[int, int] = {}
        self.completed_step = 0
        self.granted_blocks = 0
        self.evicted_blocks = 0
        self._num_unused = num_blocks
        self._fresh, self._fresh_end = 1, num_blocks + 1
        self._gaps: list[range] = []  # behind that one, the next one last
        self._top = NULL_BLOCK
        self._returned = 0
        self._cached = 0
        self._fenced = 0
        self._buckets: dict[int, dict[int, None]] = {}

    def adopt(self, references: dict[int, int]) -> None:
        """Start from tables that exist already: ``references`` counts the entries that name each block."""
        for block, count in references.items():
            self.ref_count[block] = count
        self._num_unused = self.num_blocks - len(references)
        ends = [*sorted(references), self.num_blocks + 1]
        starts = [1, *(block + 1 for block in ends[:-1])]
        gaps = [range(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
        self._gaps = gaps[::-1] or [range(0)]
        self._begin_gap()

    # --- counts

    @property
    def free_blocks(self) -> int:
        """Grantable blocks without a digest."""
        return self._returned + self._num_unused

    @property
    def cached_blocks(self) -> int:
        """Grantable blocks with a digest."""
        return self._cached

    @property
    def fenced_blocks(self) -> int:
        """Blocks nobody references and nobody may be granted yet."""
        return self._fenced

    @property
    def referenced_blocks(self) -> int:
        """Blocks named by at least one table."""
        return self.num_blocks - self._num_unused - self._returned - self._cached - self._fenced

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return self._returned + self._num_unused + self._cached

    # --- references

    def take(self) -> int:
        """Grant one block with a reference count of 1. The caller has made sure that one is available."""
        block = self._top
        if block:
            self._top = self._next[block]
            self._returned -= 1
        elif self._num_unused:
            self._num_unused -= 1
            block = self._fresh
            self._fresh = block + 1
            if self._fresh == self._fresh_end and self._gaps:
                self._begin_gap()
        else:
            block = self._next[NULL_BLOCK]
            assert block != NULL_BLOCK, "a block was taken from an empty pool: capacity was miscounted"
            self._unlink(block)
            self._forget(block)
            self.evicted_blocks += 1
        self.ref_count[block] = 1
        self.granted_blocks += 1
        if self.journal is not None:
            self.journal.blocks.add(block)
        return block

    def share(self, block: int) -> None:
        """One more table names a referenced block."""
        self.ref_count[block] += 1
        if self.journal is not None:
            self.journal.blocks.add(block)

    def hit(self, block: int) -> None:
        """A table names an indexed block, whatever its state."""
        count = self.ref_count[block]
        if count == 0:
            if self.fence[block] > self.completed_step:
                self._leave_fence(block)
            else:
                self._unlink(block)
        self.ref_count[block] = count + 1
        if self.journal is not None:
            self.journal.blocks.add(block)

    def hit_all(self, table: list[int]) -> None:
        """A table names indexed blocks, whatever their state. Null entries are skipped."""
        ref_count = self.ref_count
        for block in table:
            if count := ref_count[block]:
                ref_count[block] = count + 1
            elif block:
                self.hit(block)
        if self.journal is not None:
            self.journal.blocks.update(filter(None, table))

    def drop(self, block: int, fence: int) -> None:
        """One table names ``block`` no longer; without a reference left it may be granted once ``fence`` has completed.

        An indexed block does not leave the fence before one that entered earlier, so that a prefix outlives what
        follows it (I6).
        """
        count = self.ref_count[block] - 1
        self.ref_count[block] = count
        if self.journal is not None:
            self.journal.blocks.add(block)
        if count:
            return
        fence = max(fence, self.fence[block])
        if self._buckets and self.digest[block] is not None:
            fence = max(fence, max(self._buckets))
        if fence > self.completed_step:
            self.fence[block] = fence
            self._buckets.setdefault(fence, {})[block] = None
            self._fenced += 1
        else:
            self._give_back(block)

    def drop_table(self, table: list[int], fence: int) -> None:
        """Drop a whole table, its tail first: a prefix outlives what follows it. Null entries are skipped."""
        for block in reversed(table):
            if block:
                self.drop(block, fence)

    def pin(self, block: int, step: int) -> None:
        """``step`` reads or writes ``block``: once unreferenced it waits for that step. A pin is no reference."""
        self.fence[block] = max(self.fence[block], step)

    def pin_swap_source(self, block: int, step: int) -> None:
        """A swap-out of ``step`` reads ``block``: as ``pin``, and until then nobody writes it in place."""
        self.pin(block, step)
        self.swap_sources[block] = step

    def in_free_list(self, block: int) -> bool:
        """Whether a hit on ``block`` would take it out of the free list."""
        return self.ref_count[block] == 0 and self.fence[block] <= self.completed_step

    def count_in_free_list(self, table: list[int]) -> int:
        """How many blocks of a table hits would take out of the free list."""
        ref_count, fence, completed = self.ref_count, self.fence, self.completed_step
        return sum([1 for block in table if ref_count[block] == 0 and block and fence[block] <= completed])

    # --- digests

    def publish(self, filled: list[Filled], step: int) -> None:
        """``step`` fills blocks: their digests can be hit from now on. A block that has a digest keeps it.

        Null blocks are skipped.
        """
        if not filled:
            return
        held, shards, unconfirmed, journal = self.digest, self.index.shards, self.unconfirmed, self.journal
        published: list[Filled] = []
        for item in filled:
            block, digest, _ = item
            if block and held[block] is None:
                held[block] = digest
                if shards[digest[0]].setdefault(digest, block) != block:
                    self.index.add(digest, block)
                unconfirmed[block] = step
                published.append(item)
                if journal is not None:
                    journal.blocks.add(block)
        self._published.append((step, published))

    def first_holder(self, digest: bytes) -> int:
        """The block a hit on ``digest`` takes, 0 for none."""
        return self.index.first(digest)

    def first_confirmed_holder(self, digest: bytes) -> int:
        """The first block that holds ``digest`` and was filled by a completed step, 0 for none."""
        unconfirmed = self.unconfirmed
        first = self.index.first(digest)
        if first not in unconfirmed:
            return first
        return next((block for block in self.index.holders(digest) if block not in unconfirmed), 0)

    def withdraw(self, failed_step: int) -> None:
        """Forget what ``failed_step`` and later steps made visible; of these blocks the free ones go to the front."""
        for block in [block for block, step in self.unconfirmed.items() if step >= failed_step]:
            if self.in_free_list(block):
                self._unlink(block)
                self._forget(block)
                self._push(block)
            else:
                self._forget(block)

    def clear_digests(self) -> int:
        """Forget every digest and return how many blocks had one. Nothing may be referenced or fenced."""
        cleared = list(self._ring())
        journal, self.journal = self.journal, None  # one event instead of one per digest
        for block in cleared:
            self._unlink(block)
            self._forget(block)
            self._push(block)
        self.journal = journal
        if journal is not None:
            journal.cleared(cleared)
        return len(cleared)

    # --- steps

    def complete(self, step: int) -> None:
        """All steps up to ``step`` have completed: their fences fall and their digests are there for everyone."""
        self.completed_step = step
        if self._buckets:
            for fence in sorted(fence for fence in self._buckets if fence <= step):
                for block in self._buckets.pop(fence):
                    self._fenced -= 1
                    self._give_back(block)
                    if self.journal is not None:
                        self.journal.blocks.add(block)
        published, unconfirmed = self._published, self.unconfirmed
        journal = self.journal if self.journal is not None and self.journal.follows_cache else None
        while published and published[0][0] <= step:
            filled_by, filled = published.popleft()
            for block, digest, parent in filled:
                # It may have been withdrawn or lost, granted and filled anew, by the same step even.
                if unconfirmed.get(block) == filled_by and self.digest[block] is digest:
                    if journal is not None and not self.first_confirmed_holder(digest):
                        journal.stored(parent, digest)  # unless another holder made it known
                    del unconfirmed[block]
        if self.swap_sources:
            self.swap_sources = {block: started for block, started in self.swap_sources.items() if started > step}

    # --- for checks and views

    def grant_order(self) -> Iterator[int]:
        """Every grantable block in the order in which ``take`` would grant them."""
        yield from self._stack()
        for unused in self.unused():
            yield from unused
        yield from self._ring()

    def listed(self) -> tuple[list[int], list[int]]:
        """The grantable blocks that were used before: those without a digest and those with one, in grant order."""
        return list(self._stack()), list(self._ring())

    def fenced(self) -> Iterator[int]:
        """Every fenced block."""
        for fence in sorted(self._buckets):
            yield from self._buckets[fence]

    def unused(self) -> list[range]:
        """The blocks that nobody was granted yet, in grant order; all of them are free."""
        return [each for each in (range(self._fresh, self._fresh_end), *self._gaps[::-1]) if each]

    def used(self) -> Iterator[int]:
        """Every block that was granted or adopted, in order of the ids."""
        start = 1
        for unused in [*self.unused(), range(self.num_blocks + 1, self.num_blocks + 2)]:
            yield from range(start, unused.start)
            start = unused.stop

    # --- lists

    def _stack(self) -> Iterator[int]:
        block = self._top
        while block:
            yield block
            block = self._next[block]

    def _ring(self) -> Iterator[int]:
        block = self._next[NULL_BLOCK]
        while block:
            yield block
            block = self._next[block]

    def _begin_gap(self) -> None:
        gap = self._gaps.pop()
        self._fresh, self._fresh_end = gap.start, gap.stop

    def _give_back(self, block: int) -> None:
        if self.digest[block] is None:
            self._push(block)
        else:
            last = self._previous[NULL_BLOCK]
            self._next[last] = block
            self._previous[block] = last
            self._next[block] = NULL_BLOCK
            self._previous[NULL_BLOCK] = block
            self._cached += 1

    def _push(self, block: int) -> None:
        self._next[block] = self._top
        self._top = block
        self._returned += 1

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._cached -= 1

    def _leave_fence(self, block: int) -> None:
        fence = self.fence[block]
        bucket = self._buckets[fence]
        del bucket[block]
        if not bucket:
            del self._buckets[fence]
        self._fenced -= 1

    def _forget(self, block: int) -> None:
        digest = self.digest[block]
        if digest is not None:
            self.digest[block] = None
            self.index.remove(digest, block)
            known_to_all = self.unconfirmed.pop(block, None) is None
            if self.journal is not None:
                self.journal.blocks.add(block)
                if known_to_all and self.journal.follows_cache and not self.first_confirmed_holder(digest):
                    self.journal.removed(digest)
