"""asyncio's event loop, for a process that streams much over gRPC.

gRPC's completion queue writes a byte to a socket for each of its events, and its reader there takes one byte and then
every event. So after a burst, such as the tokens of one step for all streams, a turn of the loop handles all, and a
turn for each byte that is left finds nothing. This loop has the bytes taken that came together.
"""

import array
import asyncio
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVarTuple

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Arguments = TypeVarTuple("Arguments")

_QUEUE = "PollerCompletionQueue"


class BurstLoop(asyncio.SelectorEventLoop):
    """Wakes once for the events that gRPC has for it; with a gRPC that works otherwise it is asyncio's own loop.

    For a process with one event loop: several share one completion queue and its socket.
    """

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
