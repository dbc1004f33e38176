"""A call on a worker whose first message is noticed."""

from collections.abc import Awaitable, Callable

import grpc.aio

from octavo.worker.v1 import worker_pb2

GenerateCall = grpc.aio.UnaryStreamCall[worker_pb2.GenerateRequest, worker_pb2.GenerateResponse]


class WorkerCall:
    """Iterates over the messages of a call, once. After the first one it stands between nobody and nothing.

    Args:
        call: the call.
        answered: told when the first message came.
    """

    def __init__(self, call: GenerateCall, answered: Callable[[], None]) -> None:
        self._call = call
        self._messages = call.__aiter__()
        self._answered: Callable[[], None] | None = answered

    def __aiter__(self) -> "WorkerCall":
        return self

    def __anext__(self) -> Awaitable[worker_pb2.GenerateResponse]:
        return self._first() if self._answered else self._messages.__anext__()

    def cancel(self) -> None:
        """Have the worker stop."""
        self._call.cancel()

    async def _first(self) -> worker_pb2.GenerateResponse:
        message = await self._messages.__anext__()
        if self._answered:
            self._answered()
            self._answered = None
        return message
