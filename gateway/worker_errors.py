"""What a worker's error means to a client."""

import grpc
import grpc.aio
from google.rpc import error_details_pb2

from gateway.errors import InvalidRequest
from gateway.parameters import BY_NAME
from gateway.prompts import PROMPT
from service.errors import ServiceError, status_of

RETRY_SECONDS = 1.0

# The worker's field for what the output must match.
GRAMMAR = "sampling.grammar"
# Its other fields that have another name than the parameter they are made of.
_RENAMED = {"token_ids": PROMPT, "salt": "cache_salt", "beam_search.width": "beam_width"}
# Its messages that parameters are sorted into.
_SORTED = ("sampling", "stop", "beam_search")
# Its word for a field out of bounds, which is the same error found here.
_INVALID = "INVALID_REQUEST"

# Answers about the request itself: the client hears them in the worker's words.
_ABOUT_THE_REQUEST = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


def translate(address: str, error: grpc.aio.AioRpcError, tokens: int) -> ServiceError:
    """The error for the client of a call that ran on the worker at ``address`` and had brought ``tokens`` tokens.

    Errors about the request keep code, details and fields; a lost or leaving worker is UNAVAILABLE with a RetryInfo;
    anything else is INTERNAL.
    """
    code, details = error.code(), error.details() or ""
    if code in _ABOUT_THE_REQUEST:
        return _repeat(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceError(code, f"the deadline passed after {tokens} tokens", reason="DEADLINE_EXCEEDED")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED):
        return _lost(address, tokens, f"failed after {tokens} tokens: {details or code.name}")
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        f"worker {address} failed after {tokens} tokens: {code.name}: {details}",
        reason="WORKER_FAILED",
        metadata={"worker": address},
    )


def about_request(
    address: str, error: ServiceError, constraint: str, prompt: str = PROMPT
) -> InvalidRequest | ServiceError:
    """A translated error by the names that the client's parameters have; as it is when it names no fields.

    INTERNAL when it names a field that the gateway alone fills: there is nothing that the client could do better.

    Args:
        address: of the worker.
        error: as from ``translate``.
        constraint: the parameter that asked for a grammar.
        prompt: how problems name the prompt.
    """
    if error.code is not grpc.StatusCode.INVALID_ARGUMENT or not error.fields:
        return error
    problems: dict[str, str] = {}
    for field, problem in error.fields.items():
        name = constraint if field == GRAMMAR else parameter_of(field)
        if name is None:
            return ServiceError(
                grpc.StatusCode.INTERNAL,
                f"worker {address} refuses what the gateway asked of it: {error.message}",
                reason="WORKER_FAILED",
                metadata={"worker": address},
            )
        problems[prompt if name == PROMPT else name] = problem
    return InvalidRequest(problems) if error.reason == _INVALID else InvalidRequest(problems, error.reason)


def parameter_of(field: str) -> str | None:
    """The parameter that a field of the worker's request is made of; None for one that is the gateway's own."""
    whole = field.partition("[")[0]  # of an element
    if whole in _RENAMED:
        return _RENAMED[whole]
    message, _, name = whole.rpartition(".")
    return name if name in BY_NAME and (not message or message in _SORTED) else None


def frozen(address: str, tokens: int) -> ServiceError:
    """For a worker that has stopped to answer."""
    return _lost(address, tokens, f"does not answer any more, after {tokens} tokens")


def not_resumable(failure: ServiceError) -> ServiceError:
    """For a failure after which no other worker could give the same answer."""
    return ServiceError(
        failure.code,
        f"{failure.message}; samples chosen at the end cannot go on elsewhere once some were told",
        reason="NOT_RESUMABLE",
        metadata=failure.metadata,
        retry_seconds=failure.retry_seconds,
    )


def ended_early(address: str, tokens: int) -> ServiceError:
    """For a worker whose stream ended well before its samples did."""
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        f"worker {address} ended its stream after {tokens} tokens without finishing",
        reason="WORKER_FAILED",
        metadata={"worker": address},
    )


def _lost(address: str, tokens: int, how: str) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE,
        f"worker {address} {how}",
        reason="WORKER_LOST",
        metadata={"worker": address, "tokens": str(tokens)},
        retry_seconds=RETRY_SECONDS,
    )


def _repeat(error: grpc.aio.AioRpcError) -> ServiceError:
    reason, fields, metadata, retry_seconds = "WORKER_REFUSED", {}, {}, None
    for detail in getattr(status_of(error), "details", ()):
        info, bad, retry = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RetryInfo(),
        )
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            fields = {violation.field: violation.description for violation in bad.field_violations}
        elif detail.Unpack(retry):
            retry_seconds = retry.retry_delay.ToMilliseconds() / 1000
    return ServiceError(
        error.code(),
        error.details() or error.code().name,
        reason=reason,
        fields=fields,
        metadata=metadata,
        retry_seconds=retry_seconds,
    )
