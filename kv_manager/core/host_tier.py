"""The host tier: a parking lot for preempted sequences (design 3.4). Host blocks keep no digests."""

from collections import deque
from collections.abc import Iterable
from itertools import chain

NO_HOST_BLOCK = -1
"""The place of a null entry in a host table."""


class HostTier:
    """Host blocks ``0..num_blocks-1``, reference-counted: a group's shared block is parked once.

    A block that a step reads or wrote waits for that step before it is used again: within a step swaps out run before
    swaps in, so a block read by a swap-in must not be the target of a swap-out of the same step.

        take order   | never used, ascending | returned, first in first out |

    What was never used is kept as ranges, one to start with and one per gap between adopted tables, so a tier of
    millions of blocks starts without filling a list.

    Attributes:
        parked: the groups parked here, least recently parked first, with the step that parked them.
    """

    __slots__ = ("_fenced", "_num_unused", "_refs", "_returned", "_unused", "num_blocks", "parked")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.parked: dict[int, int] = {}
        self._num_unused = num_blocks
        self._unused: deque[range] = deque([range(num_blocks)])
        self._returned: deque[int] = deque()
        self._fenced: deque[tuple[int, int]] = deque()
        self._refs: dict[int, int] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that can be taken now."""
        return self._num_unused + len(self._returned)

    @property
    def unparked_blocks(self) -> int:
        """Blocks that hold no parked sequence, fenced ones included."""
        return self.free_blocks + len(self._fenced)

    def take(self) -> int:
        """One block without references yet. The caller has made sure that one is free."""
        if not self._num_unused:
            return self._returned.popleft()
        self._num_unused -= 1
        first = self._unused.popleft()
        if len(first) > 1:
            self._unused.appendleft(first[1:])
        return first[0]

    def share(self, table: Iterable[int]) -> None:
        """One more host table names these blocks."""
        for block in table:
            if block != NO_HOST_BLOCK:
                self._refs[block] = self._refs.get(block, 0) + 1

    def drop(self, table: Iterable[int], fence: int) -> None:
        """One host table names these blocks no longer; the last reference frees them once ``fence`` has completed."""
        for block in table:
            if block == NO_HOST_BLOCK:
                continue
            self._refs[block] -= 1
            if self._refs[block] == 0:
                del self._refs[block]
                if fence:
                    self._fenced.append((fence, block))
                else:
                    self._returned.append(block)

    def adopt(self, tables: Iterable[list[int]]) -> None:
        """Start from host tables that exist already."""
        for table in tables:
            self.share(table)
        self._num_unused = self.num_blocks - len(self._refs)
        ends = [*sorted(self._refs), self.num_blocks]
        starts = [0, *(block + 1 for block in ends[:-1])]
        self._unused = deque(range(start, end) for start, end in zip(starts, ends, strict=True) if start < end)

    def complete(self, step: int) -> None:
        """All steps up to ``step`` have completed."""
        while self._fenced and self._fenced[0][0] <= step:
            self._returned.append(self._fenced.popleft()[1])

    def grantable(self) -> list[int]:
        """The free blocks, next one first. Takes time in proportion to the tier."""
        return [*chain.from_iterable(self._unused), *self._returned]

    def fenced(self) -> list[int]:
        """The blocks that wait for a step."""
        return [block for _, block in self._fenced]

    def state(self) -> tuple[object, ...]:
        """Everything, for the state's digest and the integrity check."""
        free = [(each.start, each.stop) for each in self._unused], list(self._returned)
        return free, list(self._fenced), sorted(self._refs.items()), list(self.parked.items())

    def references_of(self, block: int) -> int:
        """How many host tables name a block."""
        return self._refs.get(block, 0)

    def references(self) -> dict[int, int]:
        """Reference counts of the blocks in use."""
        return dict(self._refs)
