"""Reads the body of a request: JSON, bounded in bytes and time."""

import asyncio
from typing import Any

import grpc
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import Receive

from gateway.http.errors import HttpError
from service.errors import ServiceError

# A client that sends less than its body in this time is too slow, or holds the connection on purpose.
BODY_SECONDS = 60.0

JSON = "application/json"
IDENTITY = "identity"


class ClientLeft(ServiceError):
    """The client closed its connection; there is nobody to answer."""

    def __init__(self) -> None:
        super().__init__(grpc.StatusCode.CANCELLED, "the client closed its connection", reason="CLIENT_LEFT")


async def read_object(headers: Headers, receive: Receive, max_bytes: int) -> dict[str, Any]:
    """The JSON object that a request carries.

    Raises:
        HttpError: 415 for another type or a compressed body, 413 for more than ``max_bytes``, 408 for a slow client,
            400 for no JSON object.
        ClientLeft: before the end of the body.
    """
    # A page of another origin may send text/plain without asking its browser first; JSON it may not.
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise HttpError(415, f"the content-type must be {JSON}", reason="UNSUPPORTED_MEDIA_TYPE")
    if headers.get("content-encoding", IDENTITY).strip().lower() != IDENTITY:
        raise HttpError(415, "the body must come as it is, without a content-encoding", reason="UNSUPPORTED_ENCODING")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read(headers, receive, max_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise HttpError(408, message, reason="REQUEST_TIMEOUT", headers={"connection": "close"}) from None
    return _parse(body)


async def _read(headers: Headers, receive: Receive, max_bytes: int) -> bytes:
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> HttpError:
    # The connection ends with the answer: the rest of the body would have to be read to find the next request.
    message = f"the body is larger than {max_bytes} bytes"
    return HttpError(413, message, reason="REQUEST_TOO_LARGE", headers={"connection": "close"})


def _parse(body: bytes) -> dict[str, Any]:
    """Strict JSON: no NaN, no lone surrogates, 200 levels at most."""
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        # The parser says what it expected and where; it repeats nothing of the text.
        raise HttpError(400, f"the body is no valid JSON: {error}", reason="INVALID_JSON") from error
    if not isinstance(document, dict):
        raise HttpError(400, "the body must be a JSON object", reason="INVALID_JSON")
    return document
