"""Requests that fit any model, and answers put together."""

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pool_view import STARVED_SECONDS

from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc

PATIENCE_SECONDS = 60.0
# What is left of the context to an endless stream's prompt, and the most tokens it asks for.
PROMPT_ROOM, LONGEST = 64, 8_000


@dataclass(slots=True)
class Sample:
    """One sample."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)
    finished: worker_pb2.Finished | None = None

    @property
    def reason(self) -> str:
        assert self.finished is not None
        return sampling_pb2.FinishReason.Name(self.finished.reason).removeprefix("FINISH_REASON_")


class Answer:
    """What came back for one request; every message is held against the stream's rules."""

    def __init__(self, responses: Iterable[worker_pb2.GenerateResponse]) -> None:
        self.messages: list[worker_pb2.GenerateResponse] = []
        self.samples: dict[int, Sample] = defaultdict(Sample)
        for response in responses:
            self.take(response)

    def take(self, response: worker_pb2.GenerateResponse) -> None:
        first = not self.messages
        assert response.HasField("started") == first, "started is set in the first message only"
        if not first:
            before = self.messages[-1].header
            assert (response.header.worker_id, response.header.request_id) == (before.worker_id, before.request_id)
            assert response.header.step >= before.step, "the last step whose tokens are known never falls"
        self.messages.append(response)
        sample = self.samples[response.index]
        assert sample.finished is None, "finished is set in the last message of a sample"
        sample.tokens += response.token_ids
        sample.logprobs += response.logprobs
        if response.HasField("finished"):
            sample.finished = response.finished

    @property
    def started(self) -> worker_pb2.Started:
        return self.messages[0].started

    @property
    def only(self) -> Sample:
        """The sample of a request for one."""
        assert list(self.samples) == [0]
        return self.samples[0]

    @property
    def tokens(self) -> list[int]:
        return self.only.tokens


class Asker:
    """Asks a worker. Every prompt is one that nobody has sent, unless a test repeats its own.

    Args:
        salt: of all requests that give none of their own.
    """

    def __init__(self, stub: worker_pb2_grpc.WorkerServiceStub, model: worker_pb2.GetModelResponse, salt: str) -> None:
        self.stub = stub
        self.model = model
        self._salt = salt
        self._dice = random.Random(20_261_130)
        self._salts = itertools.count()
        self._ids = [one for one in range(min(model.vocab_size, 4_096)) if one not in model.eos_token_ids]

    @property
    def endless(self) -> int:
        """Tokens of a stream that ends only when it is ended, after a prompt of ``PROMPT_ROOM`` at most."""
        return min(self.model.max_context - PROMPT_ROOM, LONGEST)

    def prompt(self, length: int = 12) -> list[int]:
        return self._dice.choices(self._ids, k=length)

    def apart(self) -> str:
        """A salt of its own: a prompt is then computed whole."""
        return f"{self._salt}-{next(self._salts)}"

    def request(
        self,
        ids: Sequence[int],
        max_tokens: int | None = 8,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> worker_pb2.GenerateRequest:
        """Greedy and past the end of sequence, unless told otherwise."""
        fields.setdefault("salt", self._salt)
        return worker_pb2.GenerateRequest(
            token_ids=ids,
            sampling=sampling_pb2.SamplingParams(**{"temperature": 0.0, **(sampling or {})}),
            stop=sampling_pb2.StopConditions(**{"max_tokens": max_tokens, "ignore_eos": True, **(stop or {})}),
            **fields,
        )

    def open(self, ids: Sequence[int], max_tokens: int | None = 8, **fields: Any) -> Any:
        """The call, to be iterated over and cancelled; arguments as for ``request``."""
        return self.stub.Generate(self.request(ids, max_tokens, **fields), timeout=PATIENCE_SECONDS)

    def ask(self, ids: Sequence[int], max_tokens: int | None = 8, **fields: Any) -> Answer:
        """The whole answer; arguments as for ``request``."""
        return Answer(self.open(ids, max_tokens, **fields))

    def stats(self) -> worker_pb2.GetStatsResponse:
        return self.stub.GetStats(worker_pb2.GetStatsRequest(), timeout=PATIENCE_SECONDS)

    def settled(self) -> worker_pb2.GetStatsResponse:
        """The counts once nobody waits or runs; who has ended runs until its manager was told, a step later."""
        deadline = time.monotonic() + STARVED_SECONDS
        while (stats := self.stats()).running_requests or stats.waiting_requests:
            assert time.monotonic() < deadline, stats
        return stats
