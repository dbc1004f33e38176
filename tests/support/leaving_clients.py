"""Clients that leave a stream: they close an HTTP connection, cancel a gRPC call, or their deadline passes."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc


class LeavingClient:
    """One greedy request, read by a thread of its own.

    Args:
        leaves_at: it leaves when so many tokens have come; None when only ``leave`` or its deadline make it.

    Attributes:
        tokens: how many have come.
        left_at: ``time.monotonic`` when it left; None when it has not, or was answered whole.
    """

    def __init__(self, leaves_at: int | None = None) -> None:
        self.tokens = 0
        self.left_at: float | None = None
        self._leaves_at = leaves_at
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, ids: list[int], max_tokens: int) -> None:
        """Send the request."""
        self._send(ids, max_tokens)
        self._thread.start()

    def leave(self) -> None:
        """Leave now."""
        self.left_at = time.monotonic()
        self._cut()

    def join(self, seconds: float = 120.0) -> None:
        """Wait until it has left or was answered."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the client has not heard of its end"
        assert self._failure is None, self._failure

    def _run(self) -> None:
        try:
            for count in self._counts():
                self.tokens += count
                if self._leaves_at is not None and self.tokens >= self._leaves_at:
                    self.leave()
                    return
        except Exception as error:
            self._failure = None if self._has_left(error) else error

    def _has_left(self, error: Exception) -> bool:
        """Whether an error is only what comes of leaving."""
        return self.left_at is not None

    def _send(self, ids: list[int], max_tokens: int) -> None:
        raise NotImplementedError

    def _counts(self) -> Iterator[int]:
        """Tokens of each message."""
        raise NotImplementedError

    def _cut(self) -> None:
        raise NotImplementedError


class GrpcClient(LeavingClient):
    """``Generate``; leaves by cancelling, unless a deadline of so many seconds comes first."""

    def __init__(
        self,
        stub: gateway_pb2_grpc.GatewayServiceStub,
        leaves_at: int | None = None,
        *,
        deadline: float | None = None,
    ) -> None:
        super().__init__(leaves_at)
        self._stub = stub
        self._deadline = deadline
        self._call: Any = None

    def _send(self, ids: list[int], max_tokens: int) -> None:
        options = gateway_pb2.GenerateOptions(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        prompt = gateway_pb2.TokenIds(ids=ids)
        request = gateway_pb2.GenerateRequest(token_ids=prompt, options=options)
        self._call = self._stub.Generate(request, timeout=self._deadline)

    def _counts(self) -> Iterator[int]:
        for response in self._call:
            yield len(response.token_ids)

    def _cut(self) -> None:
        self._call.cancel()

    def _has_left(self, error: Exception) -> bool:
        passed = isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if passed and self.left_at is None:
            self.left_at = time.monotonic()
        return self.left_at is not None


class HttpClient(LeavingClient):
    """A stream of ``/v1/completions`` at ``address``; leaves by closing its connection."""

    def __init__(self, address: str, leaves_at: int | None = None) -> None:
        super().__init__(leaves_at)
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._socket: socket.socket | None = None

    def _send(self, ids: list[int], max_tokens: int) -> None:
        body: dict[str, Any] = {"prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        # With them every token is told when it comes, whatever text it has.
        body |= {"stream": True, "logprobs": 0}
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        # The response takes the socket away from its connection.
        self._socket = self._connection.sock

    def _counts(self) -> Iterator[int]:
        for line in self._connection.getresponse():
            if line.startswith(b"data: {"):
                logprobs = json.loads(line.removeprefix(b"data: "))["choices"][0]["logprobs"]
                yield len(logprobs["tokens"]) if logprobs else 0

    def _cut(self) -> None:
        assert self._socket is not None
        self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()
