"""Clients that read token streams and note when each token came: of a gateway over gRPC and SSE, and of a worker."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from service.channels import CHANNEL_OPTIONS

TICKS_PER_SECOND = 100_000
_TEXT = re.compile(rb'"text":"([^"]*)"')


@dataclass(slots=True)
class Seen:
    """What came of one stream: for each message the time and the tokens in it."""

    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, count: int) -> None:
        if count:
            self.times.append(time.monotonic())
            self.counts.append(count)

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    def arrivals(self) -> list[float]:
        """When each token came."""
        return [at for at, count in zip(self.times, self.counts, strict=True) for _ in range(count)]


Open = Callable[[int, int, int], Awaitable[Seen]]
"""Opens stream ``row`` of ``tokens`` tokens, one per ``ticks``, and reads it to its end."""


def order(row: int, seconds: float) -> list[int]:
    """The prompt that has a paced worker emit a token per ``seconds`` into a row of its stamps."""
    return [row, round(seconds * TICKS_PER_SECOND)]


@asynccontextmanager
async def over_grpc(address: str) -> AsyncIterator[Open]:
    """Streams of a gateway's Generate, on one connection."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)

        async def read(row: int, ticks: int, tokens: int) -> Seen:
            seen = Seen()
            request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=[row, ticks]))
            request.options.max_tokens = tokens
            async for response in stub.Generate(request):
                seen.add(len(response.token_ids))
            return seen

        yield read


@asynccontextmanager
async def of_worker(address: str) -> AsyncIterator[Open]:
    """Streams of a worker, with no gateway between."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)

        async def read(row: int, ticks: int, tokens: int) -> Seen:
            seen = Seen()
            stop = sampling_pb2.StopConditions(max_tokens=tokens)
            async for response in stub.Generate(worker_pb2.GenerateRequest(token_ids=[row, ticks], stop=stop)):
                seen.add(len(response.token_ids))
            return seen

        yield read


@asynccontextmanager
async def over_sse(address: str, word: str) -> AsyncIterator[Open]:
    """Streams of a gateway's ``/v1/completions``, each on a connection of its own, as browsers and SDKs open them.

    Args:
        address: host:port.
        word: the text of each token, which tokens are counted by.
    """
    host, _, port = address.rpartition(":")

    async def read(row: int, ticks: int, tokens: int) -> Seen:
        seen = Seen()
        body = json.dumps({"prompt": [row, ticks], "max_tokens": tokens, "stream": True}).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
            )
            rest = b""
            while data := await reader.read(1 << 16):
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    seen.add(sum(len(text) for text in _TEXT.findall(event)) // len(word))
        finally:
            writer.close()
        return seen

    yield read
