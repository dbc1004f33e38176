"""A gateway that gets one thing wrong: it passes every call on to another one, and alters what comes back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import Message
from wire_errors import DETAILS

Metadata = Sequence[tuple[str, Any]]
# As many as calls of one test run at once, health and reflection included.
THREADS = 12
LONGEST_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call as it comes in.

    Attributes:
        method: as ``Chat``.
        metadata: what its caller sends with it.
        pass_on: makes the call of the gateway behind, with this metadata: its messages, as bytes.
    """

    method: str
    metadata: Metadata
    pass_on: Callable[[Metadata], Iterator[bytes]]


Fault = Callable[[Call], Iterable[bytes]]


def nothing(call: Call) -> Iterator[bytes]:
    """No fault."""
    return call.pass_on(call.metadata)


def altering(method: str, kind: type[Message], change: Callable[[Any], object]) -> Fault:
    """Every answer of a method, changed in place."""

    def fault(call: Call) -> Iterator[bytes]:
        for data in call.pass_on(call.metadata):
            if call.method != method:
                yield data
                continue
            message = kind.FromString(data)
            change(message)
            yield message.SerializeToString()

    return fault


def answering(method: str, answer: Message) -> Fault:
    """A method that is answered and never passed on."""
    return lambda call: iter([answer.SerializeToString()]) if call.method == method else nothing(call)


def unexplained(call: Call) -> Iterator[bytes]:
    """Refuses as it should, without a detail."""
    try:
        yield from nothing(call)
    except grpc.RpcError as error:
        raise Refused(error.code(), "no") from None


class Refused(Exception):
    """Ends a call."""

    def __init__(self, code: grpc.StatusCode, details: str, trailer: Metadata = ()) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details
        self.trailer = trailer


class AlteredGateway(grpc.GenericRpcHandler):
    """Serves on loopback; a context manager.

    Args:
        target: host:port of the gateway behind.
    """

    def __init__(self, target: str, fault: Fault) -> None:
        # What a client does not read is held up at the gateway behind, not here.
        options = [("grpc.http2.bdp_probe", 0)]
        self._channel = grpc.insecure_channel(target, options)
        self._fault = fault
        self._server = grpc.server(futures.ThreadPoolExecutor(THREADS), handlers=[self], options=options)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path, metadata = handler_call_details.method, handler_call_details.invocation_metadata

        def relay(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                yield from self._fault(
                    Call(path.rpartition("/")[2], metadata, self._passed_on(path, requests, context))
                )
            except grpc.RpcError as error:
                self._end(context, Refused(error.code(), error.details() or "", error.trailing_metadata() or ()))
            except Refused as error:
                self._end(context, error)

        return grpc.stream_stream_rpc_method_handler(relay)

    def _passed_on(
        self, path: str, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Callable[[Metadata], Iterator[bytes]]:
        def passed_on(metadata: Metadata) -> Iterator[bytes]:
            kept = [(name, value) for name, value in metadata if name in ("authorization", "x-api-key")]
            # Of a call without a deadline gRPC's server says that centuries are left: more than its client can count.
            left = context.time_remaining() or LONGEST_SECONDS
            call = self._channel.stream_stream(path)(requests, timeout=min(left, LONGEST_SECONDS), metadata=kept)
            context.add_callback(call.cancel)
            yield from call

        return passed_on

    @staticmethod
    def _end(context: grpc.ServicerContext, refused: Refused) -> None:
        context.set_trailing_metadata([(name, value) for name, value in refused.trailer if name == DETAILS])
        context.abort(refused.code, refused.details)

    def __enter__(self) -> "AlteredGateway":
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()
        self._channel.close()
