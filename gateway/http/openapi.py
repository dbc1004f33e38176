"""An OpenAPI 3.1 description of the HTTP surface, made of what the surface itself reads: the table of parameters, the
lists of fields, the spellings of errors. Pure.
"""

from collections.abc import Mapping
from typing import Any

from gateway.http import openapi_answers as answers
from gateway.http.errors import SPELLINGS
from gateway.http.openapi_bodies import body_of
from gateway.http.shapes import ChatShape, CompletionShape, Shape
from service.request_ids import HEADER

PATH = "/openapi.json"
JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"

# What is said over HTTP alone: a slow client, a body too large or of another type, a method that is none.
_OWN_STATUSES = (405, 408, 413, 415)

_REQUEST_ID = {
    "name": HEADER,
    "in": "header",
    "description": "Names the request in logs and traces. The answer's begins with it, where it is short and plain.",
    "schema": {"type": "string"},
}
_TRACEPARENT = {
    "name": "traceparent",
    "in": "header",
    "description": "W3C trace context; the request's spans become a part of that trace.",
    "schema": {"type": "string"},
}


def description(version: str) -> dict[str, Any]:
    """The whole document.

    Args:
        version: of this program.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Octavo",
            "version": version,
            "description": "OpenAI's API on a paged KV cache. Null stands for absent in every field.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        # Keys are asked for where the operator has named tenants.
        "security": [{}, {"key": []}],
        "paths": {
            **{shape.path: {"post": _generating(shape)} for shape in (ChatShape(), CompletionShape())},
            "/v1/models": {"get": _page("listModels", "The served models.", JSON, answers.MODELS)},
            "/v1/models/{id}": {
                "get": {
                    **_page("getModel", "One of them.", JSON, answers.MODEL),
                    "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                }
            },
            "/health": {"get": _page("health", "Whether some worker can be used.", JSON, answers.HEALTH, {503})},
            "/livez": {"get": _page("live", "Whether the process answers at all.", JSON, answers.LIVE)},
            "/metrics": {"get": _page("metrics", "Prometheus metrics.", TEXT, {"type": "string"})},
            PATH: {"get": _page("describe", "This document.", JSON, {"type": "object"})},
        },
        "components": {
            "schemas": answers.SCHEMAS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "responses": {"Error": _response("What is wrong, in the shape of OpenAI's API.", JSON, answers.ERROR)},
        },
    }


def _generating(shape: Shape) -> dict[str, Any]:
    whole, chunk = answers.of(shape)
    answer = _response("The whole answer, or with `stream` its pieces as server-sent events.", JSON, whole)
    answer["content"][EVENTS] = {
        "schema": {"type": "string", "description": f"`data: {{...}}` per {chunk}, `: waiting`, then `data: [DONE]`"}
    }
    return {
        "operationId": {"chat.completion": "chat", "text_completion": "complete"}[shape.whole],
        "summary": {"chat.completion": "Answer a conversation.", "text_completion": "Continue prompts."}[shape.whole],
        "parameters": [_REQUEST_ID, _TRACEPARENT],
        "requestBody": {"required": True, "content": {JSON: {"schema": body_of(shape.call)}}},
        "responses": {"200": answer, **_errors()},
    }


def _page(
    operation: str,
    summary: str,
    kind: str,
    schema: Mapping[str, Any],
    statuses: frozenset[int] | set[int] = frozenset(),
) -> dict[str, Any]:
    answer = _response(summary, kind, schema)
    same = {str(status): answer for status in (200, *sorted(statuses))}
    return {"operationId": operation, "summary": summary, "responses": {**_errors(), **same}}


def _response(text: str, kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "description": text,
        "headers": {HEADER: {"description": "The request's name.", "required": True, "schema": {"type": "string"}}},
        "content": {kind: {"schema": schema}},
    }


def _errors() -> dict[str, Any]:
    statuses = {spelling.status for spelling in SPELLINGS.values()} | {*_OWN_STATUSES}
    return {str(status): {"$ref": "#/components/responses/Error"} for status in sorted(statuses)}
