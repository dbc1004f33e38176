"""kill -9 of one of two workers under sixteen streams: every stream goes on on the other as if nothing had happened.

Five kills in CI, fifty in `make soak`, both workers in turn, and a SIGTERM without grace at the end. 16 streams of one
size on two workers are 8 on each, so each end interrupts 8; every one of them must have brought at least 5 tokens by
then, as the gateway saw it, and have at least 5 to come.
"""

import asyncio
import contextlib
import json
import random
import signal
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import grpc.aio
import pytest
from byte_vocabulary import byte_tokenizer
from heard_streams import SIZES, AllEnded, Heard, generating, listen, wanted, workers_ready
from processes import ServiceProcess
from standing_fleet import StandingFleet
from tiny_checkpoints import tiny_checkpoint

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(900)]

CI_KILLS, SOAK_KILLS = 5, 50
STREAMS, ON_EACH, PROMPT, OUTPUT, EDGE = 16, 8, 24, 400, 5
# Tokens of each of its streams when a worker is told to end; it may have made some more.
ENDED_AT = (4 * EDGE, OUTPUT // 5)
# For all the streams on one worker, of blocks of 16.
NUM_BLOCKS = STREAMS * -(-(PROMPT + OUTPUT) // 16)
SEED = 20_261_130
# How often a round is played whose streams were elsewhere when their worker ended: one may begin when others are over.
TRIES = 5


class Pause(NamedTuple):
    """A stream that lost its worker."""

    cause: str
    tokens: int
    """How many it had brought."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingFleet]:
    model = tiny_checkpoint("llama", tmp_path_factory.mktemp("tiny"), **SIZES)
    byte_tokenizer().save(str(model / "tokenizer.json"))
    with ExitStack() as stack:
        yield StandingFleet(model, stack, worker={"grace-seconds": 0, "num-blocks": NUM_BLOCKS})


def pauses_of(gateway: ServiceProcess) -> list[Pause]:
    """All that the gateway's log tells."""
    lines = [json.loads(line) for line in gateway.log if "a request pauses" in line]
    return [Pause(line["cause"], int(line["message"].split(" tokens")[0].split()[-1])) for line in lines]


def requests() -> list[gateway_pb2.GenerateRequest]:
    """Eight different ones, half of them greedy and half seeded, each for two streams."""
    dice = random.Random(SEED)
    return [
        wanted(dice, PROMPT, temperature=float(number % 2), seed=number, max_tokens=OUTPUT, ignore_eos=True)
        for number in range(STREAMS // 2)
    ] * 2


class Rounds:
    """Rounds of sixteen streams, one worker ending in each.

    Attributes:
        pauses: of every stream that had one, in seconds.
        causes: of the same, as the gateway's log tells them.
    """

    def __init__(self, fleet: StandingFleet, gateway: gateway_pb2_grpc.GatewayServiceStub) -> None:
        self.pauses: list[float] = []
        self.causes: list[str] = []
        self._fleet = fleet
        self._gateway = gateway
        self._requests = requests()
        self._alone: list[Heard] = []
        self._dice = random.Random(SEED)

    async def learn(self) -> None:
        """What each request gives alone."""
        await workers_ready(self._gateway, 2)
        self._alone = [await listen(self._gateway, one, Heard()) for one in self._requests[: STREAMS // 2]] * 2

    async def play(self, place: int, by: signal.Signals) -> None:
        """One round in which all of a worker's streams were in their middle when it ended."""
        for _ in range(TRIES):
            pauses, told = await self._try(place, by)
            if len(told) == len(pauses) == ON_EACH and all(EDGE <= one.tokens <= OUTPUT - EDGE for one in told):
                self.pauses += pauses
                self.causes += [pause.cause for pause in told]
                return
        raise AssertionError(f"{told}\n{self._fleet.gateway.process.tail(60)}")

    async def _try(self, place: int, by: signal.Signals) -> tuple[list[float], list[Pause]]:
        """End a worker under the streams, each of which gives what it gives alone; both workers run again after it.

        Returns:
            The pauses that clients were told of, and those that the gateway's log tells.
        """
        heard = [Heard() for _ in self._requests]
        victim = self._fleet.workers[place]
        gateway = self._fleet.gateway.process
        paused_before = len(pauses_of(gateway))
        other, tokens = self._fleet.workers[1 - place], ON_EACH * self._dice.randrange(*ENDED_AT)
        async with generating(victim.process) as progress, generating(other.process) as elsewhere:
            streams = [
                asyncio.create_task(listen(self._gateway, request, one))
                for request, one in zip(self._requests, heard, strict=True)
            ]
            with contextlib.suppress(AllEnded):
                await progress.reaches(tokens, streams, heard, EDGE)
                # A busy gateway reads well behind it: it waits where it is until that was heard.
                victim.process.signal(signal.SIGSTOP)
                await elsewhere.others_heard(tokens, streams, heard)
            victim.process.signal(by)
            victim.process.signal(signal.SIGCONT)
        await asyncio.gather(*streams)
        status = await asyncio.to_thread(victim.process.process.wait)
        assert status == (0 if by is signal.SIGTERM else -by)
        pauses = []
        for one, lone in zip(heard, self._alone, strict=True):
            one.check(lone)
            (usage,) = one.usages.values()
            if usage.migrations:
                assert usage.migrations == 1
                pauses.append(usage.paused_seconds)
        await asyncio.to_thread(victim.start)
        await workers_ready(self._gateway, 2)
        # Where the gateway was with each stream when it heard of the end.
        return pauses, pauses_of(gateway)[paused_before:]


async def play(fleet: StandingFleet, ends: Sequence[signal.Signals]) -> Rounds:
    """A round per signal, both workers in turn."""
    async with grpc.aio.insecure_channel(fleet.gateway.address) as channel:
        rounds = Rounds(fleet, gateway_pb2_grpc.GatewayServiceStub(channel))
        await rounds.learn()
        for number, by in enumerate(ends):
            await rounds.play(number % 2, by)
        return rounds


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(CI_KILLS, id="ci"),
        pytest.param(SOAK_KILLS, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)], id="soak"),
    ],
)
def test_no_stream_is_lost_to_a_worker_that_ends(fleet: StandingFleet, kills: int) -> None:
    rounds = asyncio.run(play(fleet, [*[signal.SIGKILL] * kills, signal.SIGTERM]))
    pauses = rounds.pauses
    assert len(pauses) == (kills + 1) * ON_EACH
    assert min(pauses) > 0
    killed = pauses[:-ON_EACH]
    cuts = statistics.quantiles(killed, n=100)
    print(f"\n{kills} kills, {len(killed)} pauses: p50 {cuts[49]:.3f} s, p99 {cuts[98]:.3f} s, max {max(killed):.3f} s")
    # Streams that outlive the grace: the worker says that it leaves, and nobody counts it as lost.
    assert rounds.causes == ["lost"] * len(killed) + ["drained"] * ON_EACH
