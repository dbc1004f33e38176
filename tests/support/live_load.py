"""Clients that ask again and again while services come and go, and how their streams ended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc
import grpc.aio
from heard_streams import PATIENCE_SECONDS, Heard

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

TRY_AGAIN_SECONDS = 0.1


class Failure(NamedTuple):
    """A stream that ended by an error."""

    code: grpc.StatusCode
    message: str
    tokens: int
    """What it had brought; 0 for one that was refused."""


@dataclass(slots=True)
class Load:
    """One client per request, each with a stream at any time. Each stream is held against what its request gives alone.

    Attributes:
        gateway: what they call.
        requests: one per client.
        alone: what each gives alone.
        whole: streams that ended well.
        migrations: how often those changed their worker.
        failures: the others.
    """

    gateway: gateway_pb2_grpc.GatewayServiceStub
    requests: Sequence[gateway_pb2.GenerateRequest]
    alone: Sequence[Heard]
    whole: int = 0
    migrations: int = 0
    failures: list[Failure] = field(default_factory=list)
    _now: list[Heard] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False

    @property
    def cut(self) -> list[Failure]:
        """Streams that ended in the middle."""
        return [failure for failure in self.failures if failure.tokens]

    @property
    def refused(self) -> list[Failure]:
        """Streams that never began."""
        return [failure for failure in self.failures if not failure.tokens]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Clients ask as long as the block runs, and end with the streams that they have then.

        Raises:
            ExceptionGroup: a client heard something else than its request gives alone.
        """
        self._now = [Heard() for _ in self.requests]
        async with asyncio.TaskGroup() as clients:
            for place in range(len(self.requests)):
                clients.create_task(self._ask_on(place))
            yield
            self._over = True

    async def begun(self, tokens: int) -> None:
        """Wait until the present stream of every client has brought so many tokens."""
        while min(heard.count for heard in self._now) < tokens:
            self._news.clear()
            await self._news.wait()

    async def _ask_on(self, place: int) -> None:
        while not self._over:
            heard = self._now[place] = Heard()
            try:
                call = self.gateway.Generate(self.requests[place], timeout=PATIENCE_SECONDS, wait_for_ready=True)
                async for response in call:
                    heard.take(response)
                    self._news.set()
            except grpc.aio.AioRpcError as error:
                heard.check_begun(self.alone[place])
                self.failures.append(Failure(error.code(), error.details() or "", heard.count))
                await asyncio.sleep(TRY_AGAIN_SECONDS)
            else:
                heard.check(self.alone[place])
                self.whole += 1
                self.migrations += heard.migrations
