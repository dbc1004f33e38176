"""The HTTP surface as one ASGI application."""

import grpc
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway import spans
from gateway.http import openapi
from gateway.http.door import Door
from gateway.http.errors import HttpError, error_response
from gateway.http.generating import Generating
from gateway.http.lingering import Lingering
from gateway.http.pages import Pages
from gateway.http.request_ids import RequestIds
from gateway.http.shapes import ChatShape, CompletionShape
from gateway.http.surface import Surface
from gateway.http.traced import Traced
from gateway.inspector.site import Site
from service import tracing
from service.errors import ServiceError
from service.request_ids import HEADER

TRACED = {ChatShape.path: spans.CHAT, CompletionShape.path: spans.COMPLETION}


def routes(surface: Surface) -> list[Route]:
    """What is served where, but for the inspector's page and its data."""
    pages = Pages(surface)
    calls = [
        Route(shape.path, Generating(shape, surface), methods=["POST"])
        for shape in (ChatShape(surface.settings.reasoning_fields), CompletionShape())
    ]
    return [
        *calls,
        Route("/v1/models", pages.models),
        Route("/v1/models/{id:path}", pages.model),
        Route("/health", pages.health),
        Route("/livez", pages.live),
        Route("/metrics", pages.metrics),
        Route(openapi.PATH, pages.describe),
    ]


def application(surface: Surface, inspector: Site | None = None) -> ASGIApp:
    """The application. Pages of other origins may call it only where the settings name them.

    Args:
        inspector: the inspector's page; None leaves it out.
    """
    middleware = []
    if surface.settings.http_cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=surface.settings.http_cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[HEADER, "retry-after", "retry-after-ms"],
        )
        middleware.append(cors)
    # Inside of CORS: a page has to be able to read the refusal, and its browser asks first without a key.
    open_metrics = surface.settings.http_open_metrics
    middleware.append(Middleware(Door, gate=surface.gate, open_metrics=open_metrics))
    made = Starlette(
        routes=[*routes(surface), *(inspector.routes() if inspector is not None else ())],
        middleware=middleware,
        exception_handlers=EXCEPTION_HANDLERS,
    )
    # A redirect would lead to whatever host the request names.
    made.router.redirect_slashes = False
    # Around everything that answers, so that an answer to a defect has a name too.
    named = RequestIds(made)
    return Lingering(Traced(named, TRACED) if tracing.enabled() else named)


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message, reason = f"{request.method} is not allowed here", "METHOD_NOT_ALLOWED"
    else:
        message, reason = "there is no such path", "NOT_FOUND"
    return error_response(HttpError(error.status_code, message, reason=reason, headers=error.headers))


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return error_response(error)


def _failed(request: Request, error: Exception) -> Response:
    # The server logs the error itself.
    message = "the request failed; see the log of the service"
    return error_response(ServiceError(grpc.StatusCode.INTERNAL, message, reason="INTERNAL"))


EXCEPTION_HANDLERS = {HTTPException: _no_route, ServiceError: _refused, Exception: _failed}
"""What becomes of an error that a page raises."""
