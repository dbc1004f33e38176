"""Spans of HTTP requests: an ASGI application around another one, installed only where tracing is on."""

import asyncio
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import request_ids, tracing
from service.tracing import Value


class Traced:
    """Gives each request to a known path a span, a part of its client's trace where there is one.

    Args:
        app: the application.
        paths: those that are traced, each with what is known of all its requests. Pages that are asked every second
            would only bury the rest.
    """

    def __init__(self, app: ASGIApp, paths: Mapping[str, Mapping[str, Value]]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        attributes = self._paths.get(scope.get("path", ""))
        if scope["type"] != "http" or attributes is None:
            await self._app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        span = tracing.server_span(f"{method} {path}", Headers(scope=scope))
        known = {"http.request.method": method, "http.route": path, "url.path": path, "url.scheme": scope["scheme"]}
        for key, value in (known | dict(attributes)).items():
            span.set(key, value)
        # The server runs each request in a task of its own.
        tracing.enter(span)

        async def send_seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                span.set("http.response.status_code", status)
                span.set("octavo.request_id", request_ids.current())
                if status >= 500:
                    span.fail(str(status))
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        except asyncio.CancelledError:
            span.fail("CANCELLED", fault=False)
            raise
        except BaseException as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()
