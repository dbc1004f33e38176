"""What one browser has yet to be told. One that reads too slowly is told a snapshot instead of everything it missed."""

import asyncio
from collections import deque

MOST_BYTES = 4 << 20
"""What waits for a viewer at most, beside what its connection holds already."""


class Viewer:
    """A queue of frames with a bound. Belongs to the event loop.

    Attributes:
        lost: it needs a snapshot: it has none yet, or fell behind.
        ended: nothing more will come.
        dropped: how often it fell behind.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.lost = True
        self.ended = False
        self.dropped = 0
        self._most_bytes = most_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    def tell(self, frame: bytes) -> None:
        """Something happened. What is told to one who is lost is in its snapshot."""
        if self.lost:
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        if self._bytes > self._most_bytes:
            self.lose()
            self.dropped += 1
        self._changed.set()

    def lose(self) -> None:
        """Only a snapshot helps."""
        self.lost = True
        self._frames.clear()
        self._bytes = 0

    def begin(self) -> None:
        """A snapshot of this moment is about to be told: what is told from now on comes behind it."""
        self.lost = False

    def wake(self) -> None:
        """Something other than a frame has changed."""
        self._changed.set()

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self._changed.set()

    async def changed(self) -> None:
        """Return once there is something to take or to look at."""
        await self._changed.wait()
        self._changed.clear()

    def take(self) -> bytes:
        """All frames that wait, joined: a viewer that lags reads them in one piece."""
        joined = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        return joined
