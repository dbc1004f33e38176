"""HTTP/1.1 connections that are closed when the head of a request does not arrive in time.

uvicorn bounds the silence between two requests only: a client that sends a head byte by byte, or none at all, would
hold its connection for ever. The body has a bound of its own (``body``).
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, with a bound on the time from a head's first byte, or the connection, to the head's end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _expect_head(self) -> None:
        # A timer that runs goes on: every byte would win time otherwise.
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
