"""The worker's way to its KV manager: the same small protocol over gRPC and in-process."""

import collections
import logging
import queue
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import grpc

from octavo.kv.v1 import attach_pb2, inspect_pb2, kv_manager_pb2_grpc, steps_pb2
from service.channels import TlsFiles, open_channel
from service.errors import error_info_of

logger = logging.getLogger(__name__)

# Codes that say nothing about the request: the connection broke, or the peer is going away.
TRANSIENT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN})


class ManagerLost(Exception):
    """The manager cannot be reached."""


class ManagerRefused(Exception):
    """The manager answered with an error.

    Attributes:
        code: the gRPC status code.
        reason: the ``ErrorInfo`` reason, empty when there was none.
    """

    def __init__(self, code: grpc.StatusCode, reason: str, message: str) -> None:
        super().__init__(f"{code.name} {reason}: {message}")
        self.code = code
        self.reason = reason


class ManagerClient(Protocol):
    """Steps are sent ahead and answered in order. All calls come from the engine's thread.

    Every call may raise ``ManagerLost`` or ``ManagerRefused``; requests without an answer are void then.
    """

    def capabilities(self) -> frozenset[int]:
        """The parts of the contract (``inspect_pb2.Capability``) that the manager serves."""
        ...

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        """Bring the pool; requests sent before are void."""
        ...

    def send(self, request: steps_pb2.StepRequest) -> None:
        """Send a step's request without waiting."""
        ...

    def receive(self) -> steps_pb2.StepResponse:
        """The answer to the oldest request without one."""
        ...

    def detach(self, request: attach_pb2.DetachRequest) -> None:
        """Give the pool up."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class GrpcManagerClient:
    """A blocking ``Steps`` stream. When it breaks, a new one is opened and unanswered requests are sent again.

    Sending the same bytes again is safe: the step number is the idempotency key (rule 1).

    Args:
        address: the manager's ``host:port``.
        patience_seconds: how long a broken stream is tried again before ``ManagerLost``.
    """

    def __init__(self, address: str, tls: TlsFiles | None = None, patience_seconds: float = 2.0) -> None:
        self.address = address
        self._patience = patience_seconds
        self._channel = open_channel(address, tls)
        self._stub = kv_manager_pb2_grpc.KvManagerServiceStub(self._channel)
        self._unanswered: collections.deque[steps_pb2.StepRequest] = collections.deque()
        self._outbox: queue.SimpleQueue[steps_pb2.StepRequest | None] = queue.SimpleQueue()
        self._stream: Any = None  # a gRPC call: iterator of StepResponse, with cancel()

    def capabilities(self) -> frozenset[int]:
        try:
            return frozenset(self._stub.GetCapabilities(inspect_pb2.GetCapabilitiesRequest(), timeout=5).capabilities)
        except grpc.RpcError as error:
            raise _translate(error) from error

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        self._close_stream()
        self._unanswered.clear()
        try:
            return self._stub.Attach(iter(list(parts)), timeout=30)
        except grpc.RpcError as error:
            raise _translate(error) from error

    def send(self, request: steps_pb2.StepRequest) -> None:
        self._unanswered.append(request)
        if self._stream is None:
            self._open_stream()
        else:
            self._outbox.put(request)

    def receive(self) -> steps_pb2.StepResponse:
        deadline: float | None = None
        while True:
            try:
                assert self._stream is not None
                response: steps_pb2.StepResponse = next(self._stream)
            except StopIteration:
                failure: Exception = ManagerLost("the manager ended the stream")
            except grpc.RpcError as error:
                failure = _translate(error)
                if isinstance(failure, ManagerRefused):
                    self._close_stream()
                    self._unanswered.clear()
                    raise failure from error
            else:
                self._unanswered.popleft()
                return response
            now = time.monotonic()
            deadline = deadline or now + self._patience
            if now >= deadline:
                self._close_stream()
                self._unanswered.clear()
                raise failure
            logger.debug("steps stream broke, opening another: %s", failure)
            self._await_channel(deadline - now)
            self._open_stream()

    def detach(self, request: attach_pb2.DetachRequest) -> None:
        self._close_stream()
        try:
            self._stub.Detach(request, timeout=5)
        except grpc.RpcError as error:
            raise _translate(error) from error

    def close(self) -> None:
        self._close_stream()
        self._channel.close()

    def _open_stream(self) -> None:
        """A new stream that begins with everything unanswered."""
        self._close_stream()
        outbox: queue.SimpleQueue[steps_pb2.StepRequest | None] = queue.SimpleQueue()
        for request in self._unanswered:
            outbox.put(request)
        self._outbox = outbox
        self._stream = self._stub.Steps(_drain(outbox))

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._outbox.put(None)  # ends the thread that gRPC runs for the request iterator
            self._stream.cancel()
            self._stream = None

    def _await_channel(self, seconds: float) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            logger.debug("manager at %s not reachable for %.1f s", self.address, seconds)


def _drain(outbox: "queue.SimpleQueue[steps_pb2.StepRequest | None]") -> Iterator[steps_pb2.StepRequest]:
    while (request := outbox.get()) is not None:
        yield request


def _translate(error: grpc.RpcError) -> Exception:
    code: grpc.StatusCode = error.code()
    message: str = error.details() or ""
    info = error_info_of(error)
    # A servicer's own UNAVAILABLE carries a reason; a broken connection does not.
    if (code in TRANSIENT and info is None) or code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ManagerLost(message)
    return ManagerRefused(code, info.reason if info else "", message)
