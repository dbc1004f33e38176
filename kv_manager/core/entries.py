"""What a journal keeps: events that are made messages when a watcher hears them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kv_manager.core.events import Event
from octavo.kv.v1 import common_pb2, watch_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    Events = RepeatedCompositeFieldContainer[watch_pb2.WatchResponse]

EVENT_WEIGHT = 4
"""What an event takes to tell beside its blocks, digests or table entries, in those."""


@dataclass(frozen=True, slots=True)
class Interest:
    """What somebody watches.

    Attributes:
        token_ids: whether to tell the ids of stored blocks, as far as the operator allowed it.
        batched: whether several events may come in one message.
    """

    kinds: frozenset[int]
    token_ids: bool = False
    batched: bool = False


class Entry(Protocol):
    """Events of one kind and one step. They have no numbers yet: those are each watcher's own."""

    @property
    def kind(self) -> int:
        """What they are about."""

    @property
    def count(self) -> int:
        """How many they are."""

    @property
    def weight(self) -> int:
        """What all of them take to tell and to keep, in blocks, digests or table entries."""

    def tell(self, into: "Events", interest: Interest, number: int, heard: int) -> int:
        """Tell a watcher.

        Args:
            into: where the messages are added.
            number: that of the first event told.
            heard: how many of the first events it has heard already.

        Returns:
            What that took, as ``weight`` counts it.
        """


class Single:
    """One event. Its first message is kept for watchers to come, so nobody may change what it says."""

    __slots__ = ("_event", "_header", "_told", "kind", "weight")

    def __init__(self, kind: int, event: Event, header: common_pb2.ResponseHeader) -> None:
        self.kind = kind
        self.weight = EVENT_WEIGHT + event.weight
        self._event: Event | None = event
        self._header = header
        self._told: watch_pb2.WatchResponse | None = None

    @property
    def count(self) -> int:
        return 1

    def tell(self, into: "Events", interest: Interest, number: int, heard: int) -> int:
        response, event = into.add(), self._event
        if event is None:
            assert self._told is not None
            response.CopyFrom(self._told)
        else:
            event.write(response)
            response.header.CopyFrom(self._header)
            self._event, self._told = None, response
        if self.kind == watch_pb2.EVENT_KIND_CACHE and not interest.token_ids and response.stored.token_ids:
            if response is self._told:  # others ask for them
                self._told = watch_pb2.WatchResponse()
                self._told.CopyFrom(response)
            response.stored.ClearField("token_ids")
        response.sequence = number
        return self.weight


GrownTable = tuple[int, int, tuple[int, ...]]
"""(sequence, first new index, new blocks). Tuples of numbers: thousands are kept, and the collector skips them."""


class Grown:
    """The tables that a step lets grow, an event each: what most steps do, and nothing else."""

    __slots__ = ("_header", "_tables", "weight")

    kind = watch_pb2.EVENT_KIND_TABLES

    def __init__(self, tables: tuple[GrownTable, ...], header: common_pb2.ResponseHeader) -> None:
        self.weight = EVENT_WEIGHT * len(tables) + sum([len(entries) for _, _, entries in tables])
        self._tables = tables
        self._header = header

    @property
    def count(self) -> int:
        return len(self._tables)

    def tell(self, into: "Events", interest: Interest, number: int, heard: int) -> int:
        # One message is changed and copied: that takes half as long as a new one with all its parts for each.
        response, weight = watch_pb2.WatchResponse(header=self._header), 0
        table = response.table
        blocks = table.blocks
        for at, (seq, first_index, entries) in enumerate(self._tables[heard:], start=number):
            table.seq, table.first_index, blocks[:] = seq, first_index, entries
            response.sequence = at
            into.add().CopyFrom(response)
            weight += EVENT_WEIGHT + len(entries)
        return weight
