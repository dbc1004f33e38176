"""A name for each request: in the response's header, and in the logs of gateway and worker."""

import re
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"

# Goes into logs and headers as it is.
_GIVEN = re.compile(r"[A-Za-z0-9][\w.:/+=-]{0,79}", re.ASCII)

_KEY = "octavo.request_id"


class RequestIds:
    """Names every request and says the name in its response, whatever it is.

    The name begins with what the client sent as ``x-request-id``, where that is short and plain. It never is the whole:
    a client that tries again under the same name must not meet its own first try at the worker.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        unique = uuid.uuid4().hex
        name = f"{given}-{unique[:8]}" if _GIVEN.fullmatch(given) else unique
        scope[_KEY] = name
        header = (HEADER.encode(), name.encode())

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], header]
            await send(message)

        await self._app(scope, receive, send_named)


def request_id_of(scope: Scope) -> str:
    """The name of a request."""
    name: str = scope[_KEY]
    return name
