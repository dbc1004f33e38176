"""Which blocks hold which digest."""


class PrefixIndex:
    """A map from digest to all blocks that hold it, in the order in which they were added.

    Duplicates are kept: a table is append-only, so a block computed twice stays twice, and the digest can be hit until
    its last copy is granted to somebody else.

    There are 256 dicts, by the digest's first byte: one dict of millions of entries stalls for 0.4 s when it grows. An
    entry with a single holder, nearly all of them, is the bare block id; a list only exists for duplicates.

    Attributes:
        shards: the dicts.
    """

    __slots__ = ("shards",)

    def __init__(self) -> None:
        self.shards: list[dict[bytes, int | list[int]]] = [{} for _ in range(256)]

    def first(self, digest: bytes) -> int:
        """The block that has held ``digest`` longest, 0 when none does."""
        holder = self.shards[digest[0]].get(digest, 0)
        return holder if isinstance(holder, int) else holder[0]

    def holders(self, digest: bytes) -> list[int]:
        """All blocks that hold ``digest``, longest holder first."""
        holder = self.shards[digest[0]].get(digest, 0)
        if isinstance(holder, int):
            return [holder] if holder else []
        return list(holder)

    def add(self, digest: bytes, block: int) -> None:
        """``block`` holds ``digest`` from now on."""
        shard = self.shards[digest[0]]
        holder = shard.setdefault(digest, block)
        if holder != block:
            if isinstance(holder, int):
                shard[digest] = [holder, block]
            else:
                holder.append(block)

    def remove(self, digest: bytes, block: int) -> None:
        """``block`` no longer holds ``digest``; the entry goes with its last holder."""
        shard = self.shards[digest[0]]
        holder = shard[digest]
        if isinstance(holder, int):
            del shard[digest]
            return
        holder.remove(block)
        if len(holder) == 1:
            shard[digest] = holder[0]

    def digests(self) -> list[bytes]:
        """All digests, in no particular order."""
        return [digest for shard in self.shards for digest in shard]
