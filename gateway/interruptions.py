"""How a worker's call broke off, and whether another worker may go on with the request."""

import enum

import grpc
import grpc.aio

from service.errors import error_info_of


class Cause(enum.Enum):
    """Why a request has to leave its worker."""

    LOST = "lost"
    """The connection broke, or the worker's engine failed: the request itself may be why."""
    DRAINED = "drained"
    """The worker leaves and has said so."""
    FROZEN = "frozen"
    """The worker does not answer any more, while another one of its model does."""
    REFUSED = "refused"
    """The worker did not take it in: it leaves or is not ready, or has no room for one that runs already."""


# As workers say in ErrorInfo.
NOT_READY = "NOT_READY"
SHUTTING_DOWN = "SHUTTING_DOWN"
# What a request that runs must not die of when it comes to a second worker. A client's new one is told.
_PASSING = frozenset({"QUEUE_FULL", "REQUEST_ID_IN_USE"})
# Codes of a call whose server is gone, or cut it. gRPC gives no ErrorInfo with them; our workers do with UNAVAILABLE.
_GONE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED})


def cause_of(error: grpc.aio.AioRpcError, *, answered: bool, again: bool) -> Cause | None:
    """Why a call broke off; None when the error is about the request, which fails anywhere.

    Args:
        error: what the call ended with.
        answered: whether the call had brought a message.
        again: whether the request ran on a worker before.
    """
    info = error_info_of(error)
    reason = "" if info is None else info.reason
    if error.code() in _GONE:
        if reason == SHUTTING_DOWN and answered:
            return Cause.DRAINED
        return Cause.REFUSED if reason in (NOT_READY, SHUTTING_DOWN) else Cause.LOST
    return Cause.REFUSED if again and reason in _PASSING else None
