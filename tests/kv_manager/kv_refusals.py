"""What a manager may refuse with: the codes and reasons of the contract (docs/architecture.md, section 9)."""

from dataclasses import dataclass

import grpc

from octavo.kv.v1 import inspect_pb2
from service.errors import ServiceError, error_info_of

REASONS: dict[grpc.StatusCode, frozenset[str]] = {
    grpc.StatusCode.INVALID_ARGUMENT: frozenset(
        {
            "DUPLICATE_SEQUENCE",
            "EMPTY",
            "INVALID_FIELD",
            "LIVE_AFTER_FAILURE",
            "MALFORMED_MESSAGE",
            "MALFORMED_TOKENS",
            "NOT_ADVANCED",
            "NOT_RUNNING",
            "NOT_SWAPPED",
            "OUT_OF_RANGE",
            "SEQUENCE_EXISTS",
            "STALE_SEQUENCE_ID",
            "STREAM_OF_ANOTHER_POOL",
            "UNEQUAL_COLUMNS",
            "UNKNOWN_SEQUENCE",
            "UNSPECIFIED",
            "WRONG_BLOCK",
            "WRONG_COMMIT_START",
            "WRONG_GROUP",
        }
    ),
    grpc.StatusCode.NOT_FOUND: frozenset({"POOL_NOT_FOUND", "SEQUENCE_NOT_FOUND"}),
    grpc.StatusCode.FAILED_PRECONDITION: frozenset({"STALE_EPOCH", "WRONG_STEP", "CACHE_IN_USE", "POOL_IN_USE"}),
    grpc.StatusCode.ALREADY_EXISTS: frozenset({"STEP_CONFLICT"}),
    grpc.StatusCode.UNIMPLEMENTED: frozenset(inspect_pb2.Capability.keys()),
}


@dataclass(frozen=True)
class Refusal:
    """A call that was refused, in-process or over gRPC."""

    code: grpc.StatusCode
    reason: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> "Refusal":
        if isinstance(error, ServiceError):
            return cls(error.code, error.reason, error.message)
        assert isinstance(error, grpc.RpcError)
        info = error_info_of(error)
        return cls(error.code(), info.reason if info else "", error.details() or "")

    @property
    def documented(self) -> bool:
        return self.reason in REASONS.get(self.code, ())
