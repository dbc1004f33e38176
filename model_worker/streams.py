"""Where the engine's thread hands tokens to the event loop: one stream per request."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from model_worker.engine.progress import Progress
from model_worker.engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class Stream:
    """What one request has produced and its caller has not read.

    A slow caller costs no more than its own tokens: they pile up here, at most ``max_tokens`` of them, and the next
    read takes them all at once.
    """

    sequence: Sequence
    """The request's handle: its only sample, or the first one."""
    _pending: list[Progress] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, progress: Progress) -> None:
        self._pending.append(progress)
        self._arrived.set()

    @property
    def samples(self) -> int:
        """How many samples its caller gets."""
        return 1 if self.sequence.group is None else self.sequence.group.returned

    def takes(self, progress: Progress) -> bool:
        """Whether it is of this request, which an earlier one of the same id is not."""
        sequence, group = progress.sequence, self.sequence.group
        return sequence is self.sequence or (group is not None and sequence.group is group)

    async def get(self) -> list[Progress]:
        """Everything since the last read, at least one entry."""
        await self._arrived.wait()
        self._arrived.clear()
        taken, self._pending = self._pending, []
        return taken


class StreamTable:
    """Open streams by request id. Belongs to the event loop but for ``deliver``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_id: dict[str, Stream] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, sequence: Sequence) -> Stream | None:
        """A stream for a sequence; None when its request id is in use."""
        if sequence.request_id in self._by_id:
            return None
        stream = self._by_id[sequence.request_id] = Stream(sequence)
        return stream

    def close(self, sequence: Sequence) -> None:
        del self._by_id[sequence.request_id]

    def find(self, request_id: str) -> Stream | None:
        return self._by_id.get(request_id)

    def deliver(self, progress: list[Progress]) -> None:
        """Called by the engine's thread, once per step however many sequences ran."""
        self._loop.call_soon_threadsafe(self._deliver, progress)

    def _deliver(self, progress: Iterable[Progress]) -> None:
        for one in progress:
            stream = self._by_id.get(one.sequence.request_id)
            if stream is not None and stream.takes(one):
                stream.put(one)
