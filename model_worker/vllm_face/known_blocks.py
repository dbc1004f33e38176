"""What was told of cached blocks, kept for subscribers that come later."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """A full block.

    Attributes:
        digest: its own.
        parent: the digest of the block before it, or of the root.
        ids: its token ids.
    """

    digest: bytes
    parent: bytes
    ids: Sequence[int]


class KnownBlocks:
    """Blocks by digest, with the ids that the manager tells once only.

    Shared by all streams of a worker, whose events bring it up to date. While nobody listens it grows old; the digests
    of the manager's next snapshot say which of its blocks are still cached.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, block: Block) -> None:
        self._blocks[block.digest] = block

    def remove(self, digests: Collection[bytes]) -> None:
        for digest in digests:
            self._blocks.pop(digest, None)

    def keep(self, digests: Collection[bytes]) -> None:
        """Forget all others."""
        self._blocks = {digest: self._blocks[digest] for digest in digests if digest in self._blocks}

    def below(self, root: bytes) -> Iterator[Block]:
        """Every block that hangs on ``root`` by known ones, parents before children."""
        children: dict[bytes, list[Block]] = {}
        for block in self._blocks.values():
            children.setdefault(block.parent, []).append(block)
        level = [root]
        while level:
            found = [block for parent in level for block in children.get(parent, ())]
            yield from found
            level = [block.digest for block in found]
