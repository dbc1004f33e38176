"""The snapshot a watcher starts from, read in slices so that steps go on meanwhile.

It is numbered with the last event before its first slice. What changes while it is read may be in it already and is
told again by the events behind that number. Every event says what is now, so a watcher that hears them after the
snapshot ends with the truth.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kv_manager.core import views
from kv_manager.core.slices import SLICE_BLOCKS, Item, Sliced
from octavo.kv.v1 import inspect_pb2, watch_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

SLICE_LOOKS = 8 * SLICE_BLOCKS
"""Digests or blocks merely looked at per slice."""
PIECE_DIGESTS = 2_048
PIECE_BLOCKS = 512
PIECE_TABLE = 16_384
"""What one message of a snapshot holds at most: digests, blocks, entries of one table."""


def snapshot(pool: "Pool", kinds: frozenset[int], sequence: int) -> Sliced[watch_pb2.WatchResponse]:
    """The state to start from, in pieces.

    Args:
        sequence: the number of the last event recorded before.
    """
    header = pool.header()

    def told(**event: watch_pb2.Snapshot | watch_pb2.TableChanged) -> watch_pb2.WatchResponse:
        return watch_pb2.WatchResponse(header=header, sequence=sequence, **event)  # type: ignore[arg-type]

    # Kept as they are now: a table's events say where it changed, so they must be heard on top of what it was.
    tables: list[tuple[int, list[int]]] = []
    if watch_pb2.EVENT_KIND_TABLES in kinds:
        tables = [(each.id, list(each.table)) for each in views.by_rank(pool)]
    if watch_pb2.EVENT_KIND_CACHE in kinds:
        for digests in _pieces(_digests(pool), PIECE_DIGESTS):
            yield told(snapshot=watch_pb2.Snapshot(digests=digests)) if digests else None
    if watch_pb2.EVENT_KIND_BLOCKS in kinds:
        for blocks in _pieces(_blocks(pool), PIECE_BLOCKS):
            yield told(snapshot=watch_pb2.Snapshot(blocks=blocks)) if blocks else None
    if kinds & {watch_pb2.EVENT_KIND_SEQUENCES, watch_pb2.EVENT_KIND_TABLES}:
        for sequences in _pieces(_sequences(pool), PIECE_BLOCKS):
            yield told(snapshot=watch_pb2.Snapshot(sequences=sequences)) if sequences else None
    if tables:  # their sequences may be gone by now, and a snapshot begins with one of its own messages
        yield told(snapshot=watch_pb2.Snapshot())
    for seq, table in tables:
        for first in range(0, max(1, len(table)), PIECE_TABLE):
            piece = watch_pb2.TableChanged(seq=seq, first_index=first, blocks=table[first : first + PIECE_TABLE])
            yield told(table=piece)
    yield told(snapshot=watch_pb2.Snapshot(last=True))


def _pieces(items: Sliced[Item], most: int) -> Iterator[list[Item] | None]:
    """Items by the messageful; pauses pass through."""
    piece: list[Item] = []
    for item in items:
        if item is None:
            yield None
            continue
        piece.append(item)
        if len(piece) == most:
            yield piece
            piece = []
    if piece:
        yield piece


def _digests(pool: "Pool") -> Sliced[bytes]:
    """What everyone may hit."""
    blocks, looked = pool.blocks, 0
    for shard in blocks.index.shards:
        names = list(shard)  # it may change before the next slice; an event tells
        for digest in names:
            looked += 1
            if blocks.first_confirmed_holder(digest):
                yield digest
            if looked % SLICE_LOOKS == 0:
                yield None


def _blocks(pool: "Pool") -> Sliced[inspect_pb2.BlockInfo]:
    """The blocks that are not free, in order of their ids."""
    blocks = pool.blocks
    owners: dict[int, list[int]] = {}
    # A table that changes before the snapshot ends changes its blocks too, and their events name their owners.
    yield from views.note_owners(pool, owners, range(1, blocks.num_blocks + 1))
    work = 0
    for block in blocks.used():
        work += 1
        if blocks.ref_count[block] or blocks.digest[block] is not None or not blocks.in_free_list(block):
            work += SLICE_LOOKS // SLICE_BLOCKS
            yield views.block_info(pool, block, owners.get(block, []))
        if work >= SLICE_LOOKS:
            work = 0
            yield None


def _sequences(pool: "Pool") -> Sliced[inspect_pb2.SequenceSummary]:
    for count, each in enumerate(views.by_rank(pool), start=1):
        yield views.sequence_summary(each)
        if count % SLICE_BLOCKS == 0:
            yield None
