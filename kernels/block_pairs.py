"""Pairs of blocks, from and to, as the KV manager orders them: checked before anything moves, and joined into runs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import NamedTuple


class Run(NamedTuple):
    """Blocks source, source + 1, ... go to destination, destination + 1, ...: one contiguous move."""

    source: int
    destination: int
    length: int


def block_ids(name: str, blocks: Iterable[int]) -> list[int]:
    """The ids as ints, whatever kind of sequence they come in, a tensor included. TypeError for any that is none."""
    listed = blocks.tolist() if hasattr(blocks, "tolist") else blocks
    try:
        return [index(block) for block in listed]
    except TypeError:
        raise TypeError(f"{name} must be block ids, which are ints, got {blocks!r}") from None


def check_moves(
    sources: Sequence[int], destinations: Sequence[int], source_ids: range, destination_ids: range, verb: str
) -> None:
    """ValueError unless both lists are of one length, ids lie in their ranges and no destination occurs twice.

    `verb` names what was asked for in the message: "copied", "swapped".
    """
    if len(sources) != len(destinations):
        raise ValueError(f"{len(sources)} sources for {len(destinations)} destinations")
    for ids, blocks in ((source_ids, sources), (destination_ids, destinations)):
        for block in blocks:
            if block not in ids:
                null = ", and 0 is the null block" if ids.start == 1 else ""
                raise ValueError(
                    f"block {block} cannot be {verb}: a block id lies in {ids.start}..{ids.stop - 1}{null}"
                )
    distinct = set(destinations)
    if len(distinct) != len(destinations):
        twice = sorted(block for block, times in Counter(destinations).items() if times > 1)
        raise ValueError(f"blocks {twice} are the destination of more than one copy")


def check_copies(sources: Sequence[int], destinations: Sequence[int], num_rows: int) -> None:
    """ValueError unless these copies inside a pool of `num_rows` blocks, null block included, mean the same in any
    order: beside `check_moves`, no destination is also a source (a chain, or a copy onto itself).
    """
    ids = range(1, num_rows)
    check_moves(sources, destinations, ids, ids, "copied")
    if chained := sorted(set(destinations).intersection(sources)):
        raise ValueError(f"blocks {chained} are both source and destination of copies in one call")


def runs(sources: Sequence[int], destinations: Sequence[int]) -> Iterator[Run]:
    """The pairs as few contiguous moves: neighbours in the lists that are neighbours on both sides are joined."""
    start = 0
    for end in range(1, len(sources) + 1):
        length = end - start
        if end < len(sources):
            expected = (sources[start] + length, destinations[start] + length)
            if (sources[end], destinations[end]) == expected:
                continue
        yield Run(sources[start], destinations[start], length)
        start = end
