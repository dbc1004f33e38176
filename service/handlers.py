"""What server interceptors have in hand: the handler of a method, and how it is made again with another behaviour."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Behaviour = Callable[[Any, Any], Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]]


def behaving(
    handler: Any, wrap: Callable[[Behaviour], Behaviour], deserialize: Callable[[bytes], Any] | None = None
) -> "grpc.RpcMethodHandler[Any, Any]":
    """The same method, served by what ``wrap`` makes of its behaviour.

    Args:
        handler: of any of the four kinds; an interceptor that refuses a call may take a stream of requests.
        wrap: what it returns answers as what it is given does: with a stream, if ``handler.response_streaming``.
        deserialize: reads the requests in place of the handler's own.
    """
    kinds = {
        (False, False): (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
        (False, True): (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
        (True, False): (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
        (True, True): (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
    }
    behaviour, make = kinds[handler.request_streaming, handler.response_streaming]
    return make(
        wrap(behaviour),
        request_deserializer=deserialize or handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
