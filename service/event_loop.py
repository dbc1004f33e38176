"""asyncio's event loop, for a process that streams much over gRPC.

gRPC's completion queue writes a byte to a socket for each of its events, and its reader there takes one byte and then
every event. So after a burst, such as the tokens of one step for all streams, a turn of the loop handles all, and a
turn for each byte that is left finds nothing. This loop has the bytes taken that came together.

asyncio's own loop answers a lack of file descriptors with a traceback, and another try, for each connection that its
listener could hold: thousands a second. Here it is one line in a while, and one try a second.
"""

import array
import asyncio
import contextvars
import errno
import fcntl
import logging
import resource
import socket
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVarTuple

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Arguments = TypeVarTuple("Arguments")

logger = logging.getLogger(__name__)

_QUEUE = "PollerCompletionQueue"
_LISTEN_AGAIN = "_start_serving"
NO_FILES = (errno.EMFILE, errno.ENFILE)
NO_FILES_SECONDS = 10.0
"""From one line about file descriptors to the next."""


class BurstLoop(asyncio.SelectorEventLoop):
    """Wakes once for the events that gRPC has for it; with a gRPC that works otherwise it is asyncio's own loop.

    For a process with one event loop, for several share one completion queue and its socket, and with one listener of
    asyncio's.
    """

    _told_at = float("-inf")
    _next_try: asyncio.TimerHandle | None = None

    def add_reader(self, fd: "FileDescriptorLike", callback: Callable[[*Arguments], object], *args: *Arguments) -> None:
        owner = getattr(getattr(callback, "func", callback), "__self__", None)
        if not isinstance(fd, socket.socket) or type(owner).__name__ != _QUEUE:
            super().add_reader(fd, callback, *args)
            return
        wakes, waiting = fd, array.array("i", [0])

        def take_burst(*given: *Arguments) -> None:
            # All bytes but one, which the callback takes. The events that they tell of are in the queue already.
            fcntl.ioctl(wakes.fileno(), termios.FIONREAD, waiting)
            if waiting[0] > 1:
                wakes.recv(waiting[0] - 1)
            callback(*given)

        super().add_reader(fd, take_burst, *args)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if getattr(callback, "__name__", "") != _LISTEN_AGAIN:
            return super().call_later(delay, callback, *args, context=context)
        if self._next_try is None or self._next_try.when() <= self.time():
            self._next_try = super().call_later(delay, callback, *args, context=context)
        return self._next_try

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in NO_FILES:
            super().call_exception_handler(context)
        elif self.time() >= self._told_at + NO_FILES_SECONDS:
            self._told_at = self.time()
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            logger.error("new connections wait, for all %d file descriptors are in use: raise ulimit -n", most)
