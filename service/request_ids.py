"""The name of the request at hand: in its log lines, its errors and its answer, at every service that it passes.

It belongs to the task that serves the request and to all tasks begun there; other threads and tasks have none.
"""

import contextvars
import re
import uuid

HEADER = "x-request-id"

# Goes into logs and headers as it is.
_PLAIN = re.compile(r"[A-Za-z0-9][\w.:/+=-]{0,79}", re.ASCII)

MAX_CHARACTERS = 128

_at_hand: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


def current() -> str:
    """The name of the request at hand, empty outside of requests."""
    return _at_hand.get()


def enter(name: str) -> None:
    """Name the request that this task serves; what is too long for a trailer is cut."""
    _at_hand.set(name[:MAX_CHARACTERS])


def unique(given: str) -> str:
    """A name that begins with what a client gave, where that is short and plain.

    It never is the whole: a client that tries again under the same name must not meet its own first try at the worker.
    """
    number = uuid.uuid4().hex
    return f"{given}-{number[:8]}" if _PLAIN.fullmatch(given) else number


def is_plain(name: str) -> bool:
    """Whether a name is fit for headers and logs as it is."""
    return _PLAIN.fullmatch(name) is not None
