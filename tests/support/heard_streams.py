"""Streams through a gateway, and what their clients heard, to be held against what each request gives alone."""

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from byte_vocabulary import END, VOCAB
from processes import ServiceProcess

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

Request = gateway_pb2.GenerateRequest | gateway_pb2.ChatRequest

PATIENCE_SECONDS = 180.0
# Sizes of a tiny checkpoint whose tokens are bytes.
SIZES = {"vocab_size": VOCAB, "max_position_embeddings": 512, "eos_token_id": END}
# Of a log-probability: its last bits depend on who else is in a step.
LOGPROB_BITS = 1e-3


@dataclass(slots=True)
class Heard:
    """What one client heard, by the answer's index."""

    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    prompt_logprobs: list[float] = field(default_factory=list)
    calls: dict[int, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """Names and arguments of the functions called; a call's id is drawn anew each time."""
    usages: dict[int, gateway_pb2.Usage] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.tokens.values()))

    @property
    def migrations(self) -> int:
        """How often it went on on another worker, as its answers tell."""
        return max((usage.migrations for usage in self.usages.values()), default=0)

    def take(self, response: gateway_pb2.GenerateResponse | gateway_pb2.ChatResponse) -> None:
        self.tokens[response.index] += response.token_ids
        self.logprobs[response.index] += [entry.token.logprob for entry in response.logprobs]
        if isinstance(response, gateway_pb2.ChatResponse):
            self.texts[response.index] += response.content
            self.calls[response.index] += [(call.name, call.arguments_json) for call in response.tool_calls]
        else:
            self.texts[response.index] += response.text
            self.prompt_logprobs += [entry.token.logprob for entry in response.prompt_logprobs]
        if response.HasField("usage"):
            self.usages[response.index] = response.usage

    def check(self, alone: "Heard") -> None:
        """Whether the stream is whole and the same.

        Raises:
            AssertionError: naming the first difference.
        """
        for index, tokens in alone.tokens.items():
            assert self.tokens[index] == tokens, _difference(f"tokens of answer {index}", self.tokens[index], tokens)
        assert self.texts == alone.texts, f"{dict(self.texts)} instead of {dict(alone.texts)}"
        assert self.calls == alone.calls, f"{dict(self.calls)} instead of {dict(alone.calls)}"
        for index, values in alone.logprobs.items():
            assert _close(self.logprobs[index], values), f"log-probabilities of answer {index} differ"
        assert _close(self.prompt_logprobs, alone.prompt_logprobs), "log-probabilities of the prompt differ"
        assert self.usages.keys() == alone.usages.keys(), f"answers {sorted(self.usages)} ended"
        for index, usage in self.usages.items():
            assert usage.prompt_tokens == alone.usages[index].prompt_tokens, usage
            assert usage.completion_tokens == len(alone.tokens[index]), usage
            assert (usage.paused_seconds > 0) == (usage.migrations > 0), usage

    def check_begun(self, alone: "Heard") -> None:
        """Whether what came of a stream that was cut is how it begins alone.

        Raises:
            AssertionError: it is not.
        """
        for index, tokens in self.tokens.items():
            begun = alone.tokens[index][: len(tokens)]
            assert tokens == begun, _difference(f"tokens of answer {index}", tokens, begun)
            assert alone.texts[index].startswith(self.texts[index]), self.texts[index]


def _difference(what: str, found: Sequence[int], wanted: Sequence[int]) -> str:
    at = next((at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), None)
    where = min(len(found), len(wanted)) if at is None else at
    return f"{what} differ from the {where}th on: {found[where:][:8]} instead of {wanted[where:][:8]}"


def _close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(found) == len(wanted) and all(
        math.isclose(one, other, abs_tol=LOGPROB_BITS) for one, other in zip(found, wanted, strict=True)
    )


def wanted(dice: random.Random, prompt_tokens: int, **options: Any) -> gateway_pb2.GenerateRequest:
    """A request with a prompt of bytes that nobody else has."""
    request = gateway_pb2.GenerateRequest(options=gateway_pb2.GenerateOptions(**options))
    request.token_ids.ids.extend(dice.randrange(256) for _ in range(prompt_tokens))
    return request


async def listen(gateway: gateway_pb2_grpc.GatewayServiceStub, request: Request, to: Heard) -> Heard:
    """Everything that comes; told to ``to`` as it comes."""
    call = gateway.Chat if isinstance(request, gateway_pb2.ChatRequest) else gateway.Generate
    async for response in call(request, timeout=PATIENCE_SECONDS):
        to.take(response)
    return to


async def workers_ready(gateway: gateway_pb2_grpc.GatewayServiceStub, count: int) -> None:
    """Wait, by asking, until the gateway can use so many workers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        models = (
            await gateway.ListModels(gateway_pb2.ListModelsRequest(), wait_for_ready=True, timeout=PATIENCE_SECONDS)
        ).models
        if [model.ready_workers for model in models] == [count]:
            return
        assert time.monotonic() < deadline, models
        await asyncio.sleep(0.02)


class Generating:
    """How far a worker's streams are: made before they begin, since a fast one may end while it is asked for.

    Which streams are its own nobody knows beforehand, so their tokens count together.
    """

    def __init__(self, worker: worker_pb2_grpc.WorkerServiceStub, before: int) -> None:
        self._worker = worker
        self._before = before

    async def reaches(
        self, tokens: int, streams: Sequence["asyncio.Task[Heard]"], heard: Sequence[Heard] = (), each: int = 0
    ) -> None:
        """Wait until they have brought so many.

        Args:
            heard: by clients of which every one must have heard ``each`` tokens too: one may begin long after the rest.

        Raises:
            AllEnded: all streams ended before; or the error of one that failed, since its tokens may never come.
        """
        while await _generated(self._worker) < self._before + tokens or any(one.count < each for one in heard):
            _check_running(streams)

    async def others_heard(self, tokens: int, streams: Sequence["asyncio.Task[Heard]"], heard: Sequence[Heard]) -> None:
        """Wait until clients have heard so many that this worker cannot have generated.

        Raises:
            AllEnded: as of ``reaches``.
        """
        while sum(one.count for one in heard) - (await _generated(self._worker) - self._before) < tokens:
            _check_running(streams)


class AllEnded(Exception):
    """No stream is left to wait for."""


def _check_running(streams: Sequence["asyncio.Task[Heard]"]) -> None:
    ended = [stream.result() for stream in streams if stream.done()]
    if len(ended) == len(streams):
        raise AllEnded


@asynccontextmanager
async def generating(victim: ServiceProcess) -> AsyncIterator[Generating]:
    """Counts what a worker generates from now on."""
    async with grpc.aio.insecure_channel(victim.address) as channel:
        worker = worker_pb2_grpc.WorkerServiceStub(channel)
        yield Generating(worker, await _generated(worker))


async def _generated(worker: worker_pb2_grpc.WorkerServiceStub) -> int:
    return (await worker.GetStats(worker_pb2.GetStatsRequest())).generated_tokens
