"""Errors in the shape of OpenAI's API, from the same ``ServiceError`` that the gRPC surface sends.

{"error": {"message": "...", "type": "invalid_request_error", "param": "temperature", "code": "invalid_value"}}
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
from pydantic_core import to_json
from starlette.responses import Response

from gateway.errors import ContextExceeded, InvalidRequest
from service.errors import ServiceError

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"

RETRY_SECONDS = 1.0

# Clients of OpenAI's API try 408, 409, 429 and every 5xx again unless this header says that it cannot help.
NO_RETRY = {"x-should-retry": "false"}


class Spelling(NamedTuple):
    """How HTTP says a gRPC status code."""

    status: int
    type: str
    headers: Mapping[str, str] = {}


# The one table; 499 is what proxies log for a client that left.
SPELLINGS: Mapping[grpc.StatusCode, Spelling] = {
    grpc.StatusCode.INVALID_ARGUMENT: Spelling(400, INVALID_REQUEST),
    grpc.StatusCode.OUT_OF_RANGE: Spelling(400, INVALID_REQUEST),
    grpc.StatusCode.FAILED_PRECONDITION: Spelling(400, INVALID_REQUEST),
    grpc.StatusCode.UNAUTHENTICATED: Spelling(401, "authentication_error", {"www-authenticate": "Bearer"}),
    grpc.StatusCode.PERMISSION_DENIED: Spelling(403, "permission_error"),
    grpc.StatusCode.NOT_FOUND: Spelling(404, INVALID_REQUEST),
    grpc.StatusCode.ALREADY_EXISTS: Spelling(409, INVALID_REQUEST, NO_RETRY),
    grpc.StatusCode.ABORTED: Spelling(409, SERVER_ERROR),
    grpc.StatusCode.RESOURCE_EXHAUSTED: Spelling(429, "rate_limit_error"),
    grpc.StatusCode.CANCELLED: Spelling(499, INVALID_REQUEST),
    grpc.StatusCode.INTERNAL: Spelling(500, SERVER_ERROR),
    grpc.StatusCode.UNKNOWN: Spelling(500, SERVER_ERROR),
    grpc.StatusCode.DATA_LOSS: Spelling(500, SERVER_ERROR),
    grpc.StatusCode.UNIMPLEMENTED: Spelling(501, INVALID_REQUEST, NO_RETRY),
    grpc.StatusCode.UNAVAILABLE: Spelling(503, SERVER_ERROR),
    grpc.StatusCode.DEADLINE_EXCEEDED: Spelling(504, "timeout_error"),
}

# The words that clients of OpenAI's API compare with; any other reason is its own word in lower case.
_CODES = {
    "UNKNOWN_MODEL": "model_not_found",
    "INVALID_FIELD": "invalid_value",
    "CONTEXT_EXCEEDED": "context_length_exceeded",
    "RATE_LIMITED": "rate_limit_exceeded",
    "TOKENS_LIMITED": "rate_limit_exceeded",
    "TOO_MANY_REQUESTS": "rate_limit_exceeded",
}

# Errors that are about one field although they name none.
_PARAMS = {"UNKNOWN_MODEL": "model"}


class HttpError(ServiceError):
    """An error that exists over HTTP only, with a status of its own instead of its code's."""

    def __init__(
        self, status: int, message: str, *, reason: str, headers: Mapping[str, str] | None = None, param: str = ""
    ) -> None:
        fields = {param: message} if param else {}
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, message, reason=reason, fields=fields)
        self.status = status
        self.headers = dict(headers or {})


def shutting_down() -> ServiceError:
    """For requests that come during a drain, and those that outlive it."""
    message = "the service is shutting down"
    return ServiceError(grpc.StatusCode.UNAVAILABLE, message, reason="SHUTTING_DOWN", retry_seconds=RETRY_SECONDS)


def status_of(error: ServiceError) -> int:
    """The HTTP status of an error."""
    return error.status if isinstance(error, HttpError) else SPELLINGS[error.code].status


def headers_of(error: ServiceError) -> dict[str, str]:
    """Headers that go with an error: when to try again, or that it is no use."""
    headers = dict(error.headers if isinstance(error, HttpError) else SPELLINGS[error.code].headers)
    if error.retry_seconds is not None:
        # Whole seconds are all that Retry-After takes; the second header is read by OpenAI's own clients.
        headers["retry-after"] = str(math.ceil(error.retry_seconds))
        headers["retry-after-ms"] = str(error.retry_milliseconds)
    return headers


def body_of(error: ServiceError) -> dict[str, Any]:
    """The JSON of an error."""
    return {
        "error": {
            "message": error.message,
            "type": SPELLINGS[error.code].type,
            "param": next(iter(error.fields), _PARAMS.get(error.reason)),
            "code": _CODES.get(error.reason, error.reason.lower()),
        }
    }


def error_response(error: ServiceError) -> Response:
    """An error as a whole response."""
    return Response(to_json(body_of(error)), status_of(error), headers_of(error), "application/json")


@contextmanager
def spelled(names: Mapping[str, str]) -> Iterator[None]:
    """Turn ``InvalidRequest`` into INVALID_ARGUMENT with the names that the request used.

    Args:
        names: what the request called a parameter, where that differs from the table's name.
    """
    try:
        yield
    except InvalidRequest as error:
        fields = {_spell(names, name): _retold(names, problem) for name, problem in error.problems.items()}
        message = "; ".join(f"{field}: {problem}" for field, problem in fields.items())
        reason = error.reason
        if isinstance(error, ContextExceeded):
            reason = "CONTEXT_EXCEEDED"
            # Tools that shorten a conversation and try again look for these words: litellm for the sentence, LangChain
            # for the code, which it reads in the message alone.
            words = f"This model's maximum context length is {error.max_context} tokens ({_CODES[reason]})"
            message = f"{words}. {message}"
        raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, message, reason=reason, fields=fields) from error


def _retold(names: Mapping[str, str], problem: str) -> str:
    """A problem that speaks of another parameter, by the name that the request used. Plain words are no names in it."""
    for name, given in names.items():
        if "_" in name:
            problem = re.sub(rf"\b{name}\b", given, problem)
    return problem


def _spell(names: Mapping[str, str], name: str) -> str:
    base, bracket, rest = name.partition("[")
    return names.get(base, base) + bracket + rest
