"""kill -9 of one of two workers under sixteen streams: every stream goes on on the other as if nothing had happened.

Five kills in CI, fifty in `make soak`, both workers in turn. 16 streams of one size on two workers are 8 on each, so
each kill interrupts 8; every one of them must have brought at least 5 tokens by then and have at least 5 to come.
"""

import asyncio
import json
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest
from byte_vocabulary import VOCAB, byte_tokenizer
from processes import ServiceProcess
from tiny_checkpoints import tiny_checkpoint

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model]

CI_KILLS, SOAK_KILLS = 5, 50
STREAMS, ON_EACH, PROMPT, OUTPUT, EDGE = 16, 8, 24, 160, 5
# What the slowest stream has brought when the worker ends: nobody knows yet which streams are its own. Early, for the
# other worker may be faster.
ENDED_AT = (EDGE, OUTPUT // 4)
SEED = 20_261_130
PATIENCE_SECONDS = 60.0


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
    """What one client heard."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    usage: gateway_pb2.Usage | None = None


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 512, "eos_token_id": VOCAB - 1}
    model = tiny_checkpoint("llama", tmp_path_factory.mktemp("tiny"), **sizes)
    byte_tokenizer().save(str(model / "tokenizer.json"))
    with ExitStack() as stack:
        yield Fleet(model, stack)


def requests() -> list[gateway_pb2.GenerateRequest]:
    """Eight different ones, half of them greedy and half seeded, each for two streams."""
    dice = random.Random(SEED)
    made = []
    for number in range(STREAMS // 2):
        request = gateway_pb2.GenerateRequest()
        request.token_ids.ids.extend(dice.randrange(256) for _ in range(PROMPT))
        request.options.max_tokens = OUTPUT
        request.options.ignore_eos = True
        request.options.temperature = 0.0 if number % 2 else 1.0
        request.options.seed = number
        made.append(request)
    return made * 2


async def listen(
    gateway: gateway_pb2_grpc.GatewayServiceStub, request: gateway_pb2.GenerateRequest, to: Heard
) -> Heard:
    """Everything that comes; told to ``to`` as it comes."""
    async for response in gateway.Generate(request, timeout=PATIENCE_SECONDS):
        to.text += response.text
        to.tokens += response.token_ids
        if response.HasField("usage"):
            to.usage = response.usage
    return to


async def two_ready(gateway: gateway_pb2_grpc.GatewayServiceStub) -> None:
    """Wait, by asking, until the gateway can use both workers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while [model.ready_workers for model in (await gateway.ListModels(gateway_pb2.ListModelsRequest())).models] != [2]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def end_under_way(victim: ServiceProcess, by: signal.Signals, heard: list[Heard], aim: int) -> list[int]:
    """End a worker when every stream has brought ``aim`` tokens; how far each was by then."""
    while min(len(one.tokens) for one in heard) < aim:
        assert any(one.usage is None for one in heard), "all streams ended before the worker"
        await asyncio.sleep(0.001)
    victim.signal(by)
    return [len(one.tokens) for one in heard]


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
        reached = await end_under_way(victim, by, heard, self._dice.randrange(*ENDED_AT))
        await asyncio.gather(*streams)
        status = await asyncio.to_thread(victim.process.wait)
        assert status == (0 if by is signal.SIGTERM else -by)
        moved = []
        for one, lone, position in zip(heard, self._alone, reached, strict=True):
            assert (one.tokens, one.text) == (lone.tokens, lone.text)
            assert one.usage is not None
            assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (PROMPT, OUTPUT)
            if one.usage.migrations:
                assert one.usage.migrations == 1
                self.pauses.append(one.usage.paused_seconds)
                moved.append(position)
        assert len(moved) == ON_EACH, (reached, self._fleet.gateway.tail(60))
        assert all(EDGE <= position <= OUTPUT - EDGE for position in moved), moved
        await asyncio.to_thread(self._fleet.restart, place)
        await two_ready(self._gateway)


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
def test_no_stream_is_lost_to_a_killed_worker(fleet: Fleet, kills: int) -> None:
    pauses = asyncio.run(play(fleet, [signal.SIGKILL] * kills))
    assert len(pauses) == kills * ON_EACH
    assert min(pauses) > 0
    cuts = statistics.quantiles(pauses, n=100)
    print(f"\n{kills} kills, {len(pauses)} pauses: p50 {cuts[49]:.3f} s, p99 {cuts[98]:.3f} s, max {max(pauses):.3f} s")


def test_streams_that_outlive_a_workers_grace_go_on_elsewhere(fleet: Fleet) -> None:
    pauses = asyncio.run(play(fleet, [signal.SIGTERM]))
    assert len(pauses) == ON_EACH
    # The worker says that it leaves; a loss would have logged another cause.
    said = [json.loads(line) for line in fleet.gateway.log if "a request pauses" in line]
    assert [line["cause"] for line in said[-ON_EACH:]] == ["drained"] * ON_EACH
