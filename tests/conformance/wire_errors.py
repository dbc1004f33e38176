"""A refused call, read as any client of gRPC reads one: the code, and the google.rpc details in its trailer."""

from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

DETAILS = "grpc-status-details-bin"


@dataclass(slots=True)
class Refusal:
    """What a call ended with.

    Attributes:
        code: the canonical code's name.
        message: one line for people.
        reason: ``ErrorInfo.reason``.
        fields: what was wrong with which field (``BadRequest``).
        retry_seconds: when trying again makes sense (``RetryInfo``); None without one.
    """

    code: str
    message: str
    reason: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    retry_seconds: float | None = None


def refusal(call: Callable[[], object], code: str) -> Refusal:
    """The refusal of a call that must be refused with this code."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    found = Refusal(caught.value.code().name, caught.value.details() or "")
    trailer = dict(caught.value.trailing_metadata() or ())
    for detail in status_pb2.Status.FromString(trailer.get(DETAILS, b"")).details:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            found.reason = info.reason
        elif detail.Unpack(bad):
            found.fields = {violation.field: violation.description for violation in bad.field_violations}
        elif detail.Unpack(retry):
            found.retry_seconds = retry.retry_delay.ToTimedelta().total_seconds()
    assert found.code == code, found
    return found
