"""Refusals of the core. Every one is a ``ServiceError``, so callers in-process and over gRPC see the same words."""

import grpc

from service.errors import ServiceError, invalid_argument


def bad_item(field: str, reason: str, description: str) -> ServiceError:
    """INVALID_ARGUMENT for one item of a request, such as ``advances[3]``."""
    return invalid_argument(field, description, reason=reason)


SHOWN_NAME = 256
"""Characters of a name repeated in an error: errors travel in trailers, which clients cut off at 16 KiB."""


def pool_not_found(pool: str) -> ServiceError:
    """NOT_FOUND: the pool was never attached, was detached, or its lease ran out."""
    pool = pool[:SHOWN_NAME]
    return ServiceError(
        grpc.StatusCode.NOT_FOUND,
        f"pool {pool!r} is unknown or has expired: attach again",
        reason="POOL_NOT_FOUND",
        metadata={"pool": pool},
    )


def sequence_not_found(pool: str, seq: int) -> ServiceError:
    """NOT_FOUND for a question about a sequence that is not live."""
    return ServiceError(
        grpc.StatusCode.NOT_FOUND,
        f"pool {pool!r} has no live sequence {seq}",
        reason="SEQUENCE_NOT_FOUND",
        metadata={"pool": pool, "seq": str(seq)},
    )


def stale_epoch(pool: str, got: int, expected: int) -> ServiceError:
    """FAILED_PRECONDITION: a message of an attempt that another Attach has replaced, or of none there was (rule 10)."""
    verdict = "is over" if got < expected else "was never given"
    return ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"epoch {got} of pool {pool!r} {verdict}, the current one is {expected}",
        reason="STALE_EPOCH",
        metadata={"pool": pool, "expected_epoch": str(expected)},
    )


def wrong_step(got: int, expected: int) -> ServiceError:
    """FAILED_PRECONDITION: steps grow by exactly one (rule 1)."""
    return ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"step {got} sent, step {expected} expected",
        reason="WRONG_STEP",
        metadata={"expected_step": str(expected)},
    )


def step_conflict(step: int) -> ServiceError:
    """ALREADY_EXISTS: an answered step was sent again with other bytes (rule 1)."""
    return ServiceError(
        grpc.StatusCode.ALREADY_EXISTS,
        f"step {step} was already answered for a request with other bytes; resend bytes, never rebuild",
        reason="STEP_CONFLICT",
        metadata={"step": str(step)},
    )


def cache_in_use(live_sequences: int) -> ServiceError:
    """FAILED_PRECONDITION: a cache is reset only when no sequence is live and no step is in flight."""
    return ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"the cache is in use by {live_sequences} live sequences or by steps in flight",
        reason="CACHE_IN_USE",
        metadata={"live_sequences": str(live_sequences)},
    )


def pool_in_use(pool: str, worker_id: str) -> ServiceError:
    """FAILED_PRECONDITION: the pool's worker is alive, and another one must not end its streams by mistake."""
    return ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"pool {pool!r} is in use by worker {worker_id!r}; a second worker needs a pool name of its own",
        reason="POOL_IN_USE",
        metadata={"pool": pool, "worker_id": worker_id},
        retry_seconds=1.0,
    )
