"""``octavo replay`` of what was watched: the recording of an inspector page, told again to a model of the pool.

Such a file asks for nothing, so no manager can play it. But it says everything twice: event by event, and as the
manager's own account of the pool, once a second. Told again, the events have to lead to every account.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cli.live.mirror import CACHED, FENCED, FREE, REFERENCED, SHARED, Mirror
from octavo.kv.v1 import inspect_pb2, record_pb2, watch_pb2
from service.watched import Gap

WATCHED = ("watched", "looked")


@dataclass(slots=True)
class Replay:
    """A recording as far as it was told.

    Attributes:
        events: events and pieces of snapshots told.
        compared: accounts of the manager that could be compared.
        late: accounts that came behind later events, or before the end and ahead of theirs: they cannot be.
        problems: what does not agree, one line each.
    """

    events: int = 0
    compared: int = 0
    late: int = 0
    problems: list[str] = field(default_factory=list)
    _mirror: Mirror = field(default_factory=Mirror)
    _last_look: inspect_pb2.InspectPoolResponse | None = None
    _due: list[inspect_pb2.InspectPoolResponse] = field(default_factory=list)

    def tell(self, records: Iterable[record_pb2.Record]) -> None:
        """Everything in order.

        Raises:
            ValueError: it is no such recording.
        """
        for record in records:
            kind = record.WhichOneof("entry")
            if kind == "looked":
                self._look(record.looked.response)
            elif kind == "watched":
                for event in _events(record.watched.response):
                    self._hear(event)
            else:
                raise ValueError(f"{kind} has no place in a recording of what was watched")
        self._compare_rest()

    def _look(self, answer: inspect_pb2.InspectPoolResponse) -> None:
        self._last_look = answer
        if self._mirror.pages is None or answer.summary.header.epoch != self._mirror.summary.header.epoch:
            return
        if answer.summary.header.step < self._mirror.step:
            self.late += 1
        else:  # events of its step, or of steps before, may be yet to come
            self._due.append(answer)

    def _hear(self, event: watch_pb2.WatchResponse) -> None:
        self.events += 1
        if self._mirror.begins(event):
            self._due.clear()
            if self._last_look is None:
                raise ValueError("its snapshot comes without the manager's account of the pool")
            self._mirror.begin(self._last_look)
        elif self._mirror.position is not None:
            self._compare_until(event.header.step)
        try:
            self._mirror.hear(event)
        except Gap:
            self.problems.append(f"events before number {event.sequence} of step {event.header.step} are missing")

    def _compare_until(self, step: int) -> None:
        """Compare accounts of earlier steps: everything that happened up to them was told."""
        while self._due and self._due[0].summary.header.step < step:
            self.problems += self._differences(self._due.pop(0))
            self.compared += 1

    def _compare_rest(self) -> None:
        """Of accounts that nothing follows events may be missing: batches come later, and a recording ends anywhere."""
        for answer in self._due:
            if self._mirror.pages is None or self._differences(answer):
                self.late += 1
            else:
                self.compared += 1
        self._due.clear()

    def _differences(self, answer: inspect_pb2.InspectPoolResponse) -> list[str]:
        """Between the events and an account, one line each."""
        pages = self._mirror.pages
        if pages is None:
            return []
        stats, counts = answer.summary.stats, pages.counts
        pairs = {
            "free blocks": (counts[FREE], stats.free_blocks),
            "cached blocks": (counts[CACHED], stats.cached_blocks),
            "referenced blocks": (counts[REFERENCED] + counts[SHARED], stats.referenced_blocks),
            "fenced blocks": (counts[FENCED], stats.fenced_blocks),
            "sequences": (sorted(pages.sequences), sorted(summary.seq for summary in answer.sequences)),
            "table lengths": (
                {seq: len(table) for seq, table in sorted(pages.tables.items())},
                {
                    summary.seq: summary.num_blocks
                    for summary in sorted(answer.sequences, key=lambda summary: summary.seq)
                    if summary.state == inspect_pb2.SEQUENCE_STATE_RUNNING and summary.num_blocks
                },
            ),
        }
        step = answer.summary.header.step
        return [
            f"step {step}: {name} are {told} by the events, {said} by the manager"
            for name, (told, said) in pairs.items()
            if told != said
        ]


def _events(response: watch_pb2.WatchResponse) -> Iterator[watch_pb2.WatchResponse]:
    yield from response.batch.events if response.HasField("batch") else (response,)
