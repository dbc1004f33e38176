"""Reads on behind an answer that came before its request's body was read.

A connection that is closed while bytes lie unread in it is reset, and a client that still sends then hears of a broken
pipe instead of the answer. So the answer goes out whole at once, and its end, with which a connection closes, when the
client has sent its body or had the time to.
"""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What is read is thrown away: neither costs more than the time of the connection.
DRAIN_SECONDS = 10.0
DRAIN_BYTES = 256 << 20


class Lingering:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        held = False

        async def send_held(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.body" and not message.get("more_body", False) and not body.read:
                held = True
                message = {**message, "more_body": True}
            await send(message)

        try:
            await self._app(scope, body.receive, send_held)
        finally:
            if held:
                await body.drain()
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Body:
    """A request's body on its way to whoever reads it.

    Attributes:
        read: whether its end, or the connection's, was seen.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.read = False

    async def receive(self) -> Message:
        message = await self._receive()
        self.read = self.read or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read to its end, within bounds."""
        left = DRAIN_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self.read and left > 0:
                    left -= len((await self.receive()).get("body", b""))


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
