"""kill -9 of one of two workers under sixteen streams: every stream goes on on the other as if nothing had happened.

Five kills in CI, fifty in `make soak`, both workers in turn, and a SIGTERM without grace at the end. 16 streams of one
size on two workers are 8 on each, so each end interrupts 8; every one of them must have brought at least 5 tokens by
then, as the gateway saw it, and have at least 5 to come.
"""

import asyncio
import json
import random
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
import pytest
from byte_vocabulary import END, VOCAB, byte_tokenizer
from processes import ServiceProcess
from tiny_checkpoints import tiny_checkpoint

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model]

CI_KILLS, SOAK_KILLS = 5, 50
STREAMS, ON_EACH, PROMPT, OUTPUT, EDGE = 16, 8, 24, 160, 5
# Tokens of each of its streams when a worker ends; the gateway has read some fewer.
ENDED_AT = (4 * EDGE, OUTPUT // 2)
SEED = 20_261_130
PATIENCE_SECONDS = 60.0


class Pause(NamedTuple):
    """A stream that lost its worker."""

    cause: str
    tokens: int
    """How many it had brought."""


class Fleet:
    """A manager, two workers with a pool each, and a gateway."""

    def __init__(self, model: Path, stack: ExitStack) -> None:
        self._model = model
        self._stack = stack
        flags = ("--listen=127.0.0.1:0", "--metrics=", "--lease-seconds=1")
        self._manager = self._start("kv_manager", *flags).wait_ready()
        self.workers = [self._worker(pool, "127.0.0.1:0") for pool in ("a", "b")]
        for worker in self.workers:
            worker.wait_ready()
        addresses = ",".join(worker.address for worker in self.workers)
        self.gateway = self._start(
            "gateway",
            "--listen=127.0.0.1:0",
            "--http-listen=",
            f"--workers={addresses}",
        ).wait_ready()

    @property
    def pauses(self) -> list[Pause]:
        """All that the gateway's log tells."""
        lines = [json.loads(line) for line in self.gateway.log if "a request pauses" in line]
        return [Pause(line["cause"], int(line["message"].split(" tokens")[0].split()[-1])) for line in lines]

    def restart(self, place: int) -> None:
        """A new process at the address of a dead one, once it is ready."""
        self.workers[place] = self._worker("ab"[place], self.workers[place].address).wait_ready()

    def _worker(self, pool: str, listen: str) -> ServiceProcess:
        return self._start(
            "model_worker",
            f"--model={self._model}",
            "--served-name=tiny",
            f"--listen={listen}",
            "--metrics=",
            f"--manager={self._manager.address}",
            f"--pool={pool}",
            "--dtype=float32",
            "--threads=1",
            "--num-blocks=400",
            "--grace-seconds=0",
        )

    def _start(self, module: str, *flags: str) -> ServiceProcess:
        return self._stack.enter_context(ServiceProcess(module, *flags))


@dataclass(slots=True)
class Heard:
    """What one client heard, by the answer's index."""

    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    prompt_logprobs: list[float] = field(default_factory=list)
    usages: dict[int, gateway_pb2.Usage] = field(default_factory=dict)

    def take(self, response: gateway_pb2.GenerateResponse) -> None:
        self.texts[response.index] += response.text
        self.tokens[response.index] += response.token_ids
        self.logprobs[response.index] += [entry.token.logprob for entry in response.logprobs]
        self.prompt_logprobs += [entry.token.logprob for entry in response.prompt_logprobs]
        if response.HasField("usage"):
            self.usages[response.index] = response.usage

    def check(self, alone: "Heard") -> None:
        """The same tokens and texts; log-probabilities but for the last bits, which depend on who else is in a step."""
        assert (self.tokens, self.texts) == (alone.tokens, alone.texts)
        for index, values in alone.logprobs.items():
            assert self.logprobs[index] == pytest.approx(values, abs=1e-3)
        assert self.prompt_logprobs == pytest.approx(alone.prompt_logprobs, abs=1e-3)
        for index, usage in self.usages.items():
            assert (usage.prompt_tokens, usage.completion_tokens) == (PROMPT, len(alone.tokens[index]))
            assert (usage.paused_seconds > 0) == (usage.migrations > 0)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 512, "eos_token_id": END}
    model = tiny_checkpoint("llama", tmp_path_factory.mktemp("tiny"), **sizes)
    byte_tokenizer().save(str(model / "tokenizer.json"))
    with ExitStack() as stack:
        yield Fleet(model, stack)


def requests() -> list[gateway_pb2.GenerateRequest]:
    """Eight different ones, half of them greedy and half seeded, each for two streams."""
    dice = random.Random(SEED)
    return [
        wanted(dice, temperature=float(number % 2), seed=number, max_tokens=OUTPUT, ignore_eos=True)
        for number in range(STREAMS // 2)
    ] * 2


def wanted(dice: random.Random, **options: Any) -> gateway_pb2.GenerateRequest:
    request = gateway_pb2.GenerateRequest(options=gateway_pb2.GenerateOptions(**options))
    request.token_ids.ids.extend(dice.randrange(256) for _ in range(PROMPT))
    return request


async def listen(
    gateway: gateway_pb2_grpc.GatewayServiceStub, request: gateway_pb2.GenerateRequest, to: Heard
) -> Heard:
    """Everything that comes; told to ``to`` as it comes."""
    async for response in gateway.Generate(request, timeout=PATIENCE_SECONDS):
        to.take(response)
    return to


async def two_ready(gateway: gateway_pb2_grpc.GatewayServiceStub) -> None:
    """Wait, by asking, until the gateway can use both workers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while [model.ready_workers for model in (await gateway.ListModels(gateway_pb2.ListModelsRequest())).models] != [2]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def generated(worker: worker_pb2_grpc.WorkerServiceStub) -> int:
    return (await worker.GetStats(worker_pb2.GetStatsRequest())).generated_tokens


async def end_under_way(victim: ServiceProcess, by: signal.Signals, tokens: int, heard: Sequence[Heard]) -> None:
    """End a worker when its streams have brought so many tokens together: which ones are its own, nobody knows yet."""
    async with grpc.aio.insecure_channel(victim.address) as channel:
        worker = worker_pb2_grpc.WorkerServiceStub(channel)
        before = await generated(worker)
        while await generated(worker) < before + tokens:
            assert not all(one.usages for one in heard), "all streams ended before the worker"
    victim.signal(by)


class Rounds:
    """Rounds of sixteen streams, one worker ending in each.

    Attributes:
        pauses: of every stream that had one, in seconds.
    """

    def __init__(self, fleet: Fleet, gateway: gateway_pb2_grpc.GatewayServiceStub) -> None:
        self.pauses: list[float] = []
        self._fleet = fleet
        self._gateway = gateway
        self._requests = requests()
        self._alone: list[Heard] = []
        self._dice = random.Random(SEED)

    async def learn(self) -> None:
        """What each request gives alone."""
        await two_ready(self._gateway)
        self._alone = [await listen(self._gateway, one, Heard()) for one in self._requests[: STREAMS // 2]] * 2

    async def play(self, place: int, by: signal.Signals) -> None:
        """One round; both workers run again after it."""
        heard = [Heard() for _ in self._requests]
        streams = [
            asyncio.create_task(listen(self._gateway, request, one))
            for request, one in zip(self._requests, heard, strict=True)
        ]
        victim = self._fleet.workers[place]
        paused_before = len(self._fleet.pauses)
        await end_under_way(victim, by, ON_EACH * self._dice.randrange(*ENDED_AT), heard)
        await asyncio.gather(*streams)
        status = await asyncio.to_thread(victim.process.wait)
        assert status == (0 if by is signal.SIGTERM else -by)
        for one, lone in zip(heard, self._alone, strict=True):
            one.check(lone)
            (usage,) = one.usages.values()
            if usage.migrations:
                assert usage.migrations == 1
                self.pauses.append(usage.paused_seconds)
        await asyncio.to_thread(self._fleet.restart, place)
        await two_ready(self._gateway)
        # Where the gateway was with each stream when it heard of the end.
        cuts = [pause.tokens for pause in self._fleet.pauses[paused_before:]]
        assert len(cuts) == ON_EACH, self._fleet.gateway.tail(60)
        assert all(EDGE <= tokens <= OUTPUT - EDGE for tokens in cuts), cuts


async def play(fleet: Fleet, ends: Sequence[signal.Signals]) -> list[float]:
    """A round per signal, both workers in turn. Returns the pauses in seconds."""
    async with grpc.aio.insecure_channel(fleet.gateway.address) as channel:
        rounds = Rounds(fleet, gateway_pb2_grpc.GatewayServiceStub(channel))
        await rounds.learn()
        for number, by in enumerate(ends):
            await rounds.play(number % 2, by)
        return rounds.pauses


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(CI_KILLS, id="ci"),
        pytest.param(SOAK_KILLS, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)], id="soak"),
    ],
)
def test_no_stream_is_lost_to_a_worker_that_ends(fleet: Fleet, kills: int) -> None:
    before = len(fleet.pauses)
    pauses = asyncio.run(play(fleet, [*[signal.SIGKILL] * kills, signal.SIGTERM]))
    assert len(pauses) == (kills + 1) * ON_EACH
    assert min(pauses) > 0
    killed = pauses[:-ON_EACH]
    cuts = statistics.quantiles(killed, n=100)
    print(f"\n{kills} kills, {len(killed)} pauses: p50 {cuts[49]:.3f} s, p99 {cuts[98]:.3f} s, max {max(killed):.3f} s")
    # Streams that outlive the grace: the worker says that it leaves, and nobody counts it as lost.
    causes = [pause.cause for pause in fleet.pauses[before:]]
    assert causes == ["lost"] * len(killed) + ["drained"] * ON_EACH
