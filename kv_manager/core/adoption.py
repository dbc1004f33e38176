"""Adoption: a manager started empty takes over the live tables of a worker (design 3.6).

The worker has drained its device and copy streams, so what it says was computed is there. Blocks in no table are free,
and what they cached is lost.
"""

from collections import Counter
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from kv_manager.core.admission import root_of
from kv_manager.core.block_pool import NULL_BLOCK
from kv_manager.core.errors import bad_item
from kv_manager.core.host_tier import NO_HOST_BLOCK
from kv_manager.core.pool import Pool
from kv_manager.core.prefix import TOKEN_BYTES
from kv_manager.core.sequence import Sequence
from kv_manager.core.validation import validate_id, validate_tokens
from octavo.kv.v1 import attach_pb2

NO_HOST_ENTRY = (1 << 32) - 1
"""How a host table on the wire says that an entry slid out of the window."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """What became of a snapshot.

    Attributes:
        adopted: the sequences that keep their tables.
        recompute: those without a table that can be kept; the worker admits them again.
    """

    adopted: list[int]
    recompute: list[int]


def adopt(pool: Pool, snapshot: Rows[attach_pb2.LiveSequence]) -> Adoption:
    """Build the state of an empty pool from a snapshot.

    Raises:
        ServiceError: INVALID_ARGUMENT; the pool is then to be thrown away.
    """
    adopted: list[Sequence] = []
    recompute: list[int] = []
    seen: set[int] = set()
    for row, live in enumerate(snapshot):
        field = f"sequences[{row}]"
        if live.seq == 0 or live.seq in seen:
            raise bad_item(field, "DUPLICATE_SEQUENCE", f"sequence {live.seq} appears twice or is 0")
        seen.add(live.seq)
        validate_id(f"{field}.seq", live.seq)
        _validate(pool, field, live)
        if live.table or (live.host_table and pool.host.num_blocks):
            adopted.append(_sequence(pool, live))
        else:
            recompute.append(live.seq)
    _validate_groups(adopted)
    _take_over(pool, adopted)
    # Requests that waited at the manager before are unknown here, whatever their ids.
    pool.greatest_seq = pool.adopted_up_to = max(seen, default=0)
    return Adoption([sequence.id for sequence in adopted], recompute)


def _validate(pool: Pool, field: str, live: attach_pb2.LiveSequence) -> None:
    validate_tokens(f"{field}.token_ids", live.token_ids)
    if live.table and live.host_table:
        raise bad_item(field, "OUT_OF_RANGE", "holds a table and a host table")
    if entries := len(live.table) or len(live.host_table):
        _validate_lengths(pool, field, live, entries)
    _validate_table(f"{field}.table", live.table, NULL_BLOCK, range(1, pool.blocks.num_blocks + 1), pool.window)
    if pool.host.num_blocks:
        _validate_table(f"{field}.host_table", live.host_table, NO_HOST_ENTRY, range(pool.host.num_blocks), pool.window)


def _validate_lengths(pool: Pool, field: str, live: attach_pb2.LiveSequence, entries: int) -> None:
    """What is said of a table must lie in it: a fork point or write floor beyond its end would hold its owner for good.

    Forks share slots of the table, be their ids known or not. Hits are full blocks of known ids.
    """
    known, capacity = len(live.token_ids) // TOKEN_BYTES, entries * pool.block_size
    if live.computed_tokens > min(known, capacity):
        raise bad_item(
            f"{field}.computed_tokens",
            "OUT_OF_RANGE",
            f"is {live.computed_tokens} of {known} known ids in a table of {capacity} slots",
        )
    if not live.computed_tokens <= live.granted_tokens <= capacity:
        raise bad_item(
            f"{field}.granted_tokens",
            "OUT_OF_RANGE",
            f"is {live.granted_tokens}, must be {live.computed_tokens} (computed_tokens) to {capacity} (table slots)",
        )
    if live.fork_tokens > capacity:
        raise bad_item(f"{field}.fork_tokens", "OUT_OF_RANGE", f"is {live.fork_tokens}, the table has {capacity} slots")
    most = min(entries, known // pool.block_size)
    if live.hit_blocks > most:
        raise bad_item(
            f"{field}.hit_blocks",
            "OUT_OF_RANGE",
            f"is {live.hit_blocks}, must be at most {most}: {known} known ids, {entries} blocks",
        )


def _validate_table(field: str, table: Rows[int], null: int, blocks: range, window: int | None) -> None:
    """Every entry names a block, but for those that slid out of a window, which are the first ones."""
    may_be_null = window is not None
    for index, block in enumerate(table):
        if may_be_null and block == null:
            continue
        may_be_null = False
        if block not in blocks:
            raise bad_item(f"{field}[{index}]", "OUT_OF_RANGE", f"is {block}, must be {blocks[0]} to {blocks[-1]}")


def _sequence(pool: Pool, live: attach_pb2.LiveSequence) -> Sequence:
    root = root_of(live.root)
    group = live.group if live.HasField("group") else live.seq
    root_digest = root.digest(pool.spec.model_fingerprint)
    sequence = Sequence(live.seq, group, live.priority, live.arrival, root, root_digest)
    sequence.append_ids(live.token_ids)
    # Not granted_tokens: what was granted beyond may be drafts that were rejected, or steps that never ran.
    sequence.granted = live.computed_tokens
    sequence.fork_point = live.fork_tokens
    sequence.hit_blocks = live.hit_blocks
    sequence.quota = pool.quotas.get(root.tenant)
    if live.table:
        sequence.table = list(live.table)
        sequence.null_blocks = sequence.table.count(0)
    else:
        sequence.park([NO_HOST_BLOCK if block == NO_HOST_ENTRY else block for block in live.host_table])
        sequence.null_blocks = sequence.parked_table.count(NO_HOST_BLOCK)
    return sequence


def _validate_groups(sequences: list[Sequence]) -> None:
    """A group ranks as one, runs or is parked as one, and takes blocks for one tenant."""
    state: dict[int, tuple[int, int, str, bool]] = {}
    for sequence in sequences:
        own = (sequence.priority, sequence.arrival, sequence.root.tenant, sequence.running)
        if state.setdefault(sequence.group, own) != own:
            raise bad_item(
                "sequences",
                "WRONG_GROUP",
                f"the members of group {sequence.group} lie or rank apart or have two tenants",
            )


def _take_over(pool: Pool, sequences: list[Sequence]) -> None:
    running = [sequence for sequence in sequences if sequence.running]
    parked = [sequence for sequence in sequences if not sequence.running]
    _validate_places("block", [sequence.table for sequence in running], 0)
    _validate_places("host block", [sequence.parked_table for sequence in parked], NO_HOST_BLOCK)
    references = Counter(block for sequence in running for block in sequence.table if block)
    host_references = Counter(block for sequence in parked for block in sequence.parked_blocks())
    _validate_content("block", [(each, each.table) for each in running], references, pool.block_size)
    _validate_content("host block", [(each, each.parked_table) for each in parked], host_references, pool.block_size)
    pool.blocks.adopt(references)
    pool.host.adopt(sequence.parked_table for sequence in parked)
    for sequence in sequences:
        pool.add(sequence)
        if not sequence.running:
            pool.host.parked[sequence.group] = 0
            continue
        if sequence.quota is not None:
            sequence.quota.name(sequence.table)
            if sequence.quota.used > sequence.quota.hard:
                raise bad_item("sequences", "OUT_OF_RANGE", f"tenant {sequence.root.tenant!r} is over its hard limit")
        pool.index_written(sequence, step=0)
    pool.blocks.complete(0)  # drained: everyone may find what was indexed, whatever step the worker reports next


def _validate_places(name: str, tables: list[list[int]], null: int) -> None:
    """A block holds the same place of every sequence that shares it."""
    place: dict[int, int] = {}
    for table in tables:
        for index, block in enumerate(table):
            if block != null and place.setdefault(block, index) != index:
                raise bad_item("sequences", "WRONG_BLOCK", f"{name} {block} has two places: {place[block]} and {index}")


def _validate_content(
    name: str, tables: list[tuple[Sequence, list[int]]], references: Counter[int], block_size: int
) -> None:
    """What two sequences share must be the same prefix, as far as both have computed it: in its last block as well."""
    size = block_size * TOKEN_BYTES
    most: dict[int, tuple[bytes, bytes]] = {}
    for sequence, table in tables:
        # Adoption takes what was computed for granted.
        written = memoryview(sequence.ids)[: sequence.granted * TOKEN_BYTES]
        for index, block in enumerate(table[: -(-sequence.granted // block_size)]):
            if references[block] < 2:
                continue
            before = sequence.chain_to(index, block_size)[index - 1] if index else sequence.root_digest
            ids = bytes(written[index * size : (index + 1) * size])
            known_before, known = most.setdefault(block, (before, ids))
            shared = min(len(ids), len(known))
            if before != known_before or ids[:shared] != known[:shared]:
                raise bad_item("sequences", "WRONG_BLOCK", f"{name} {block} is said to hold two different prefixes")
            most[block] = before, max(ids, known, key=len)
