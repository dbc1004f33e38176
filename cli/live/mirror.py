"""A pool as its Watch stream tells it: a snapshot, then one event after another. Pure: message in, state changed."""

from collections import deque
from dataclasses import dataclass, field

from octavo.kv.v1 import inspect_pb2, watch_pb2
from service.watched import PAGE_KINDS, Gap, is_gone, set_table

REMEMBERED_PREEMPTIONS = 64

# What a block is doing, one byte per block: a pool of 100,000 is looked through in a frame.
FREE, CACHED, REFERENCED, SHARED, FENCED = range(5)
_CODES = {
    inspect_pb2.BLOCK_STATE_FREE: FREE,
    inspect_pb2.BLOCK_STATE_CACHED: CACHED,
    inspect_pb2.BLOCK_STATE_REFERENCED: REFERENCED,
    inspect_pb2.BLOCK_STATE_FENCED: FENCED,
}


@dataclass(slots=True)
class Pages:
    """Blocks, tables and sequences of one moment.

    Attributes:
        codes: what each block is doing, block 1 first.
        counts: how many blocks do each of it.
        tables: physical blocks by logical index, of running sequences.
        parked: of parked sequences the device blocks that they were swapped out of, where those were heard.
    """

    codes: bytearray
    counts: list[int]
    tables: dict[int, list[int]] = field(default_factory=dict)
    sequences: dict[int, inspect_pb2.SequenceSummary] = field(default_factory=dict)
    parked: dict[int, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, num_blocks: int) -> "Pages":
        """All free."""
        return cls(bytearray(num_blocks), [num_blocks, 0, 0, 0, 0])

    def set_blocks(self, blocks: list[inspect_pb2.BlockInfo]) -> None:
        """These blocks are now as told."""
        for info in blocks:
            code = SHARED if info.ref_count > 1 else _CODES[info.state]
            self.counts[self.codes[info.block - 1]] -= 1
            self.counts[code] += 1
            self.codes[info.block - 1] = code

    def set_sequence(self, event: watch_pb2.SequenceEvent) -> None:
        """A sequence after a change in its life. Events about it come before those about its table."""
        seq = event.summary.seq
        self.parked.pop(seq, None)
        if is_gone(event):
            self.sequences.pop(seq, None)
            return
        self.sequences[seq] = event.summary
        table = self.tables.get(seq, ())
        if event.type == watch_pb2.SEQUENCE_EVENT_TYPE_PREEMPTED and len(table) == event.summary.num_blocks:
            self.parked[seq] = frozenset(table) - {0}

    def shared_blocks(self, seq: int) -> int:
        """How many entries of a table name a block that others name as well."""
        return sum(1 for block in self.tables.get(seq, ()) if block and self.codes[block - 1] == SHARED)

    def host_blocks(self) -> int:
        """Host blocks that parked sequences take, or a little more: no event tells them.

        Members of a group share what they shared in the pool. Where their tables were not heard, since they were
        swapped out before the stream began or forked in the very step, each counts its own; and what slid out of a
        window in the step of the swap is counted too.
        """
        groups: dict[int, set[int]] = {}
        told = 0
        for seq, summary in self.sequences.items():
            if summary.state == inspect_pb2.SEQUENCE_STATE_SWAPPED:
                blocks = self.parked.get(seq)
                if blocks is None:
                    told += summary.num_blocks
                else:
                    groups.setdefault(summary.group, set()).update(blocks)
        return told + sum(map(len, groups.values()))


@dataclass(slots=True)
class Mirror:
    """What is known of a pool.

    Attributes:
        summary: the pool at the time of the last snapshot; its spec, and the totals that events are counted on top of.
        pages: None until a snapshot is complete.
        step: of the last message.
        lookup_tokens, hit_tokens: prompt tokens of first admissions, and how many of them were found in the cache.
        preemptions: the last ones, newest last.
        trouble: why nothing more is heard at present; empty while all is well.
        heard: messages so far.
    """

    summary: inspect_pb2.PoolSummary = field(default_factory=inspect_pb2.PoolSummary)
    pages: Pages | None = None
    step: int = 0
    lookup_tokens: int = 0
    hit_tokens: int = 0
    preemptions: deque[inspect_pb2.PreemptionRecord] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED_PREEMPTIONS)
    )
    trouble: str = ""
    heard: int = 0
    _sequence: int | None = None
    _coming: Pages | None = None

    @property
    def position(self) -> watch_pb2.WatchPosition | None:
        """Where to resume; None for a snapshot."""
        if self.pages is None or self._coming is not None or self._sequence is None:
            return None
        header = self.summary.header
        return watch_pb2.WatchPosition(
            manager_id=header.manager_id, epoch=header.epoch, sequence=self._sequence, kinds=PAGE_KINDS
        )

    def begins(self, response: watch_pb2.WatchResponse) -> bool:
        """Whether a snapshot begins with this message, for which ``begin`` wants to know the pool."""
        return response.HasField("snapshot") and self._coming is None

    def begin(self, answer: inspect_pb2.InspectPoolResponse) -> None:
        """The pool as it was asked about after a snapshot had begun; later events are counted on top of it."""
        self.summary = answer.summary
        totals = answer.summary.totals
        self.lookup_tokens, self.hit_tokens = totals.lookup_tokens, totals.hit_tokens
        self.preemptions.clear()
        self.preemptions.extend(answer.recent_preemptions)
        self._coming = Pages.of(answer.summary.spec.num_blocks)

    def hear(self, response: watch_pb2.WatchResponse) -> None:
        """One message of the stream.

        Raises:
            Gap: an event before it was lost.
        """
        self.heard += 1
        self.trouble = ""
        self.step = response.header.step
        pages = self._coming if self._coming is not None else self.pages
        if pages is None:
            raise Gap
        if self._coming is None and response.sequence != (self._sequence or 0) + 1:
            self._sequence = self.pages = None
            raise Gap
        self._sequence = response.sequence
        match response.WhichOneof("event"):
            case "snapshot":
                self._take(response.snapshot, pages)
            case "blocks":
                pages.set_blocks(list(response.blocks.blocks))
            case "table":
                set_table(pages.tables, response.table)
            case "sequence_event":
                self._count(response)
                pages.set_sequence(response.sequence_event)
            case "pool_dropped":
                self.pages = self._sequence = None
                self.trouble = f"the pool is gone: {response.pool_dropped.reason}"
            case _:
                pass

    def _take(self, snapshot: watch_pb2.Snapshot, pages: Pages) -> None:
        pages.set_blocks(list(snapshot.blocks))
        pages.sequences.update((summary.seq, summary) for summary in snapshot.sequences)
        if snapshot.last:
            self.pages, self._coming = pages, None

    def _count(self, response: watch_pb2.WatchResponse) -> None:
        if response.header.step <= self.summary.header.step:
            return  # the totals have it
        event = response.sequence_event
        if event.type == watch_pb2.SEQUENCE_EVENT_TYPE_ADMITTED:
            self.lookup_tokens += event.summary.committed_tokens
            self.hit_tokens += event.cached_tokens
        elif event.type == watch_pb2.SEQUENCE_EVENT_TYPE_PREEMPTED:
            self.preemptions.append(inspect_pb2.PreemptionRecord(step=response.header.step, preempted=event.preempted))
