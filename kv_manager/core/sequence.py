"""What the manager remembers of a live sequence."""

from typing import TYPE_CHECKING

from kv_manager.core.block_pool import Filled
from kv_manager.core.host_tier import NO_HOST_BLOCK
from kv_manager.core.prefix import TOKEN_BYTES, Root, chain, next_digest

if TYPE_CHECKING:
    from kv_manager.core.quotas import Quota

Rank = tuple[int, int, int]
"""(priority, arrival, group id): smaller is better."""


class Sequence:
    """A live sequence.

        position    0 ......... known ................ granted ......... len(table) * block_size
                    | ids known to the manager |
                    | may be written by granted steps  |  blocks in hand, not told yet |

    Known ids may also reach beyond ``granted``: a prompt prefilled in chunks. Only a block full of ids that are both
    known and granted carries a digest.

    Attributes:
        ids: the ids known, u32 little-endian, position 0 first.
        known: number of ids known (the committed length).
        granted: the length last granted, raised by commits: how far granted steps may have written.
        fork_point: the largest length at which it was forked, as parent or child; 0 for none.
        digests: the prefix chain of its first full blocks, made as far as it was needed.
        indexed: leading blocks whose digests were offered to the index.
        table: device block ids by logical index; empty while parked.
        host_table: host block ids by logical index while parked in the host tier, else None.
        unwritten: it was made by a fork and has not advanced since, so it wrote nothing of its own.
        null_blocks: leading entries of the table that slid out of the window.
        quota: its tenant's limits and use, None when the tenant has none.
        readmitted_to: after a readmission, the length past which it must have been granted before it may be a victim.
        hit_blocks: the write floor in blocks told with the last admit or late hit.
    """

    __slots__ = (
        "arrival",
        "digests",
        "fork_point",
        "granted",
        "group",
        "hit_blocks",
        "host_table",
        "id",
        "ids",
        "indexed",
        "known",
        "null_blocks",
        "priority",
        "quota",
        "rank",
        "readmitted_to",
        "root",
        "root_digest",
        "table",
        "unwritten",
    )

    def __init__(self, seq: int, group: int, priority: int, arrival: int, root: Root, root_digest: bytes) -> None:
        self.id = seq
        self.group = group
        self.priority = priority
        self.arrival = arrival
        self.rank: Rank = (priority, arrival, group)
        self.root = root
        self.root_digest = root_digest
        self.ids = bytearray()
        self.known = 0
        self.granted = 0
        self.fork_point = 0
        self.digests: list[bytes] = []
        self.indexed = 0
        self.table: list[int] = []
        self.host_table: list[int] | None = None
        self.unwritten = False
        self.null_blocks = 0
        self.quota: Quota | None = None
        self.readmitted_to = 0
        self.hit_blocks = 0

    def append_ids(self, ids: bytes | bytearray) -> None:
        """Learn the next ids."""
        self.ids += ids
        self.known = len(self.ids) // TOKEN_BYTES

    def chain_to(self, num_blocks: int, block_size: int) -> list[bytes]:
        """The prefix chain, extended to the first ``num_blocks`` blocks, which must be full of known ids."""
        digests = self.digests
        have = len(digests)
        if have < num_blocks:
            parent = digests[-1] if have else self.root_digest
            digests.extend(chain(parent, self.ids, have, num_blocks, block_size))
        return digests

    def newly_full(self, block_size: int) -> list[Filled]:
        """The blocks that granted steps fill with known ids and whose digests were not offered to the index yet."""
        full = (self.granted if self.granted < self.known else self.known) // block_size
        first, digests = self.indexed, self.digests
        if full <= first or self.host_table is not None:
            return []
        self.indexed = full
        if full == first + 1 == len(digests) + 1:  # a decoding sequence has filled its block
            parent = digests[-1] if first else self.root_digest
            digest = next_digest(parent, self.ids, first, block_size)
            digests.append(digest)
            return [(self.table[first], digest, parent)]
        self.chain_to(full, block_size)
        run = digests[first:full]
        parents = [digests[first - 1] if first else self.root_digest, *run[:-1]]
        return list(zip(self.table[first:full], run, parents, strict=True))

    @property
    def running(self) -> bool:
        """Whether it holds device blocks; otherwise it is parked in the host tier."""
        return self.host_table is None

    @property
    def parked_table(self) -> list[int]:
        """The host table, empty while running."""
        return self.host_table or []

    def parked_blocks(self) -> list[int]:
        """The host blocks it names."""
        return [block for block in self.parked_table if block != NO_HOST_BLOCK]

    def park(self, host_table: list[int]) -> None:
        """Its blocks lie in the host tier from now on; its digests must be offered again when it comes back."""
        self.table = []
        self.host_table = host_table
        self.indexed = 0

    def unpark(self, table: list[int], readmitted_to: int) -> None:
        """It runs again in ``table``."""
        self.table = table
        self.host_table = None
        self.readmitted_to = readmitted_to

    def next_write(self) -> int:
        """The lowest position its next step may write.

        The manager never knows the exact length: a told length may count drafts that are rejected later, and ids are
        committed a block at a time. What it knows is written below is the larger of the fork point and the committed
        length, as far as that was granted (design 3.8).
        """
        written = self.granted if self.granted < self.known else self.known
        return written if written > self.fork_point else self.fork_point
