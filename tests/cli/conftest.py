"""A gateway that follows a script, over real gRPC, so that what the commands print can be foreseen."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import grpc
import pytest

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from service.errors import ServiceError, invalid_argument
from service.serving import Server

GATEWAY_NAME = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name


class ScriptedGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Says prompts back in words; some prompts are orders.

    "fail": INVALID_ARGUMENT naming two fields. "loading": UNAVAILABLE with a reason. "hang": one word, then nothing
    until the caller cancels. "break off": one word, then the error that a lost connection makes.

    Attributes:
        requests: those of Generate and Chat.
        keys: the metadata ``authorization`` of all calls, empty for none.
        cancelled: set when a call that hangs was cancelled.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.keys: list[str] = []
        self.cancelled = threading.Event()

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        self._hear(context)
        self.requests.append(request)
        if request.prompt == "fail":
            fields = {"temperature": "must be at least 0, found -1", "options.top_p": "must lie in (0, 1], found 2"}
            raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, "two fields", reason="INVALID_FIELD", fields=fields)
        if request.prompt == "loading":
            raise ServiceError(grpc.StatusCode.UNAVAILABLE, "no worker is ready", reason="NO_WORKER", retry_seconds=1)
        answers = max(1, request.options.n)  # word i belongs to answer i modulo their number
        for number, word in enumerate(request.prompt.split(" ")):
            index = number % answers
            answer = gateway_pb2.GenerateResponse(
                index=index, text=word if number == index else f" {word}", token_ids=[number]
            )
            if request.options.HasField("logprobs"):
                answer.logprobs.add(
                    token=gateway_pb2.TokenLogprob(token_id=number, text="t", logprob=-0.5),
                    top=[gateway_pb2.TokenLogprob(token_id=9, text="u", logprob=-1.5)],
                )
            yield answer
            if request.prompt == "break off":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            if request.prompt == "hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
        # 8 tokens after the first in 0.5 s: 16.0 tokens/s.
        usage = gateway_pb2.Usage(
            prompt_tokens=7, cached_tokens=4, completion_tokens=9, first_token_seconds=0.25, total_seconds=0.75
        )
        for index in range(answers):
            yield gateway_pb2.GenerateResponse(index=index, finish_reason=gateway_pb2.FINISH_REASON_LENGTH, usage=usage)

    async def Chat(self, request: gateway_pb2.ChatRequest, context: Any) -> AsyncIterator[gateway_pb2.ChatResponse]:
        self._hear(context)
        self.requests.append(request)
        if request.messages[-1].content == "fail":
            raise invalid_argument("messages", "too long")
        if request.messages[-1].content == "break off":
            yield gateway_pb2.ChatResponse(role="assistant", content="half")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if request.messages[-1].content == "think":
            for thought in ("let me ", "see"):
                yield gateway_pb2.ChatResponse(reasoning=thought)
        yield gateway_pb2.ChatResponse(role="assistant", content=f"{len(request.messages)} ")
        yield gateway_pb2.ChatResponse(content="messages", finish_reason=gateway_pb2.FINISH_REASON_STOP)

    async def ListModels(self, request: gateway_pb2.ListModelsRequest, context: Any) -> gateway_pb2.ListModelsResponse:
        self._hear(context)
        return gateway_pb2.ListModelsResponse(models=[gateway_pb2.Model(id="parrot")])

    def _hear(self, context: Any) -> None:
        self.keys.append(dict(context.invocation_metadata()).get("authorization", ""))


class RunningGateway:
    """The scripted gateway in a thread of its own."""

    def __init__(self) -> None:
        self.servicer = ScriptedGateway()
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._run(self._start())

    def stop(self) -> None:
        assert self._server is not None
        self._run(self._server.stop(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)

    def set_ready(self, ready: bool) -> None:
        """Let health answer SERVING or NOT_SERVING."""
        assert self._server is not None
        self._run(self._server.set_ready(ready))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _start(self) -> None:
        self._server = Server(
            [GATEWAY_NAME],
            lambda server: gateway_pb2_grpc.add_GatewayServiceServicer_to_server(self.servicer, server),
        )
        self.address = await self._server.start("127.0.0.1:0")
        await self._server.set_ready(True)


@pytest.fixture
def gateway() -> Iterator[RunningGateway]:
    running = RunningGateway()
    running.start()
    yield running
    running.stop()


Octavo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def octavo() -> Octavo:
    """Runs ``octavo`` with arguments and what it reads on stdin, as a process of its own."""

    def run(
        arguments: Sequence[str | bytes], stdin: str = "", environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cli.main", *arguments]
        return subprocess.run(
            command,
            input=stdin,
            env={**os.environ, **(environ or {})},
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=240,
            check=False,
        )

    return run
