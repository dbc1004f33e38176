"""A name for each request: in the response's header, and in the logs of gateway and worker."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import request_ids
from service.request_ids import HEADER

_KEY = "octavo.request_id"


class RequestIds:
    """Names every request and says the name in its response, whatever it is.

    The name begins with what the client sent as ``x-request-id``, where that is short and plain.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = request_ids.unique(Headers(scope=scope).get(HEADER, ""))
        scope[_KEY] = name
        # The server runs each request in a task of its own.
        request_ids.enter(name)
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
