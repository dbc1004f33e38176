"""A pool folded from its Watch stream, kept as the messages it came in. Pure: message in, state changed.

It stands for the manager towards viewers that come later or read too slowly: they are told a snapshot from here, so
that the manager has one watcher however many people look.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from octavo.kv.v1 import common_pb2, inspect_pb2, watch_pb2
from service.watched import Gap, is_gone, set_table

PIECE_BLOCKS = 512
PIECE_TABLE = 16_384
"""Blocks, or entries of one table, in a message of a snapshot."""


@dataclass(slots=True)
class PoolState:
    """What is known of a pool.

    Attributes:
        complete: whether its snapshot was heard to the end.
        sequence: the number of the last event heard.
        header: of the last message heard.
        blocks: those that are not free by id, serialised: a hundred thousand objects would weigh ten times as much.
        tables: physical blocks by logical index, of running sequences.
        sequences: the live ones, running or parked.
    """

    complete: bool = False
    sequence: int = 0
    header: common_pb2.ResponseHeader = field(default_factory=common_pb2.ResponseHeader)
    blocks: dict[int, bytes] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    sequences: dict[int, inspect_pb2.SequenceSummary] = field(default_factory=dict)

    def begins(self, response: watch_pb2.WatchResponse) -> bool:
        """Whether a snapshot begins with this message, for which a fresh state is needed."""
        return response.HasField("snapshot") and self.complete

    def hear(self, response: watch_pb2.WatchResponse) -> None:
        """One message of the stream, or a batch of them.

        Raises:
            Gap: an event before it was lost.
        """
        for event in response.batch.events if response.HasField("batch") else (response,):
            self._hear(event)

    def _hear(self, event: watch_pb2.WatchResponse) -> None:
        if self.complete and event.sequence != self.sequence + 1:
            raise Gap
        self.sequence = event.sequence
        self.header = event.header
        match event.WhichOneof("event"):
            case "snapshot":
                self._set_blocks(event.snapshot.blocks)
                self.sequences.update((summary.seq, summary) for summary in event.snapshot.sequences)
                self.complete = event.snapshot.last
            case "blocks":
                self._set_blocks(event.blocks.blocks)
            case "table":
                set_table(self.tables, event.table)
            case "sequence_event":
                self._set_sequence(event.sequence_event)
            case _:
                pass

    def _set_blocks(self, infos: Iterable[inspect_pb2.BlockInfo]) -> None:
        for info in infos:
            if info.state == inspect_pb2.BLOCK_STATE_FREE:
                self.blocks.pop(info.block, None)
            else:
                self.blocks[info.block] = info.SerializeToString()

    def _set_sequence(self, event: watch_pb2.SequenceEvent) -> None:
        if is_gone(event):
            self.sequences.pop(event.summary.seq, None)
        else:
            self.sequences[event.summary.seq] = event.summary

    def snapshot(self) -> Iterator[watch_pb2.WatchResponse]:
        """The state in pieces, numbered with the last event heard when it is called.

        As the manager's own: what changes before a piece is taken may be in it and is told again by the events behind
        its number, and tables are those of its beginning, for their events say where they changed.
        """
        tables = [(seq, list(table)) for seq, table in self.tables.items()]
        return self._pieces(self.header, self.sequence, list(self.blocks), tables)

    def _pieces(
        self, header: common_pb2.ResponseHeader, sequence: int, ids: list[int], tables: list[tuple[int, list[int]]]
    ) -> Iterator[watch_pb2.WatchResponse]:
        def told(**event: watch_pb2.Snapshot | watch_pb2.TableChanged) -> watch_pb2.WatchResponse:
            return watch_pb2.WatchResponse(header=header, sequence=sequence, **event)  # type: ignore[arg-type]

        for start in range(0, len(ids), PIECE_BLOCKS):
            known = (self.blocks.get(block) for block in ids[start : start + PIECE_BLOCKS])
            infos = [inspect_pb2.BlockInfo.FromString(info) for info in known if info is not None]
            yield told(snapshot=watch_pb2.Snapshot(blocks=infos))
        yield told(snapshot=watch_pb2.Snapshot(sequences=list(self.sequences.values())))
        for seq, table in tables:
            for first in range(0, len(table), PIECE_TABLE):
                piece = table[first : first + PIECE_TABLE]
                yield told(table=watch_pb2.TableChanged(seq=seq, first_index=first, blocks=piece))
        yield told(snapshot=watch_pb2.Snapshot(last=True))
