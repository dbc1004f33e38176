"""A response of server-sent events, which shows that it lives while nothing is generated.

    data: {...}       an event, one write each, so that no character is ever spread over two
    : waiting         a comment, which clients skip
    data: [DONE]      the end

The head goes out with the first event, so that what fails before has a status of its own; when the first event takes
longer than that, with a comment. Each later silence gets a comment now and then, so that proxies keep the connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import to_json
from starlette.types import Send

HEAD_SECONDS = 0.25

# What the output must match is compiled before anything is generated, and may be refused: a second or more for a large
# grammar.
COMPILE_SECONDS = 5.0

COMMENT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"

# Legal inside JSON, but a line's end to clients that split text by Unicode's rules. All three lie outside ASCII, so in
# JSON they are within strings.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Asks proxies to pass events on one by one.
    (b"x-accel-buffering", b"no"),
]


def event(document: Any) -> bytes:
    """A JSON document as an event."""
    data: bytes = to_json(document)
    for line_end, escaped in _LINE_ENDS:
        if line_end in data:
            data = data.replace(line_end, escaped)
    return b"data: " + data + b"\n\n"


class EventStream:
    """The response. A slow reader makes ``write`` wait.

    Attributes:
        started: whether the head is out, after which an error can only be an event.
        head_seconds: silence after which it goes out with a comment.
    """

    def __init__(self, send: Send, keep_alive_seconds: float) -> None:
        self.started = False
        self.head_seconds = HEAD_SECONDS
        self._send = send
        self._keep_alive_seconds = keep_alive_seconds
        self._written = 0
        self._lock = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        """Send whole events."""
        self._written += 1
        async with self._lock:
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the response."""
        async with self._lock:
            await self._send({"type": "http.response.body", "body": b""})

    @contextlib.asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Send comments while nothing else is written."""
        pulse = asyncio.create_task(self._pulse())
        try:
            yield
        finally:
            pulse.cancel()
            await asyncio.gather(pulse, return_exceptions=True)

    async def _pulse(self) -> None:
        seconds = self.head_seconds
        while True:
            written = self._written
            await asyncio.sleep(seconds)
            # While a write waits for a slow reader, the connection holds bytes enough.
            if written == self._written and not self._lock.locked():
                await self.write(COMMENT)
            seconds = self._keep_alive_seconds
