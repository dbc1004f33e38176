"""Every process of a fleet is replaced, one after another, under sixteen clients: no stream ends early.

A manager, two workers, two gateways. Each is told SIGTERM, drains, ends with status 0 well within its grace, and a new
process takes its address. Clients reach both gateways by the policies that are published for them (retries, and
gRPC's round robin), so nobody is refused while a worker or a gateway is replaced. While the manager is, new requests
may be: UNAVAILABLE, as soon as their retries are used up.

CI replaces one process of each service, `make soak` all of them, twice.
"""

import asyncio
import json
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import pytest
from byte_model import byte_model
from heard_streams import Heard, listen, wanted, workers_ready
from live_load import Failure, Load
from processes import REPOSITORY
from standing_fleet import Post, StandingFleet
from whole_fleet import check_whole

from octavo.gateway.v1 import gateway_pb2_grpc
from service.channels import open_aio_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(900)]

STREAMS, PROMPT, OUTPUT = 16, 24, 160
# Every stream has so many tokens when a process is told to stop.
STOPPED_AT = 20
# A stream takes a second or two, and its machine's neighbours may make that many; the manager's grace is 1.
GRACE = {"grace-seconds": 240}
ENDED_WITHIN_SECONDS = 120.0
CLIENT_POLICIES = REPOSITORY / "protos" / "octavo" / "gateway" / "v1" / "service_config.json"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingFleet]:
    with ExitStack() as stack:
        model = byte_model(tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=512)
        yield StandingFleet(model, stack, gateways=2, worker=GRACE, gateway=GRACE)


def to_all(gateways: list[Post]) -> grpc.aio.Channel:
    """A channel to every gateway, as clients are told to open one."""
    policies = json.loads(CLIENT_POLICIES.read_text()) | {"loadBalancingConfig": [{"round_robin": {}}]}
    target = "ipv4:" + ",".join(post.address for post in gateways)
    return open_aio_channel(target, options=[("grpc.service_config", json.dumps(policies))])


@dataclass(frozen=True, slots=True)
class Replaced:
    """How it went while one process was replaced."""

    drained: float
    started: float
    whole: int
    migrations: int
    failures: list[Failure]


async def replace(fleet: StandingFleet, post: Post, load: Load) -> Replaced:
    """Replace a process under a load."""
    async with load.running():
        await load.begun(STOPPED_AT)
        began = time.monotonic()
        assert await asyncio.to_thread(post.end, signal.SIGTERM) == 0
        drained = time.monotonic() - began
        started = await asyncio.to_thread(post.start)
        for gateway in fleet.gateways:
            async with open_aio_channel(gateway.address) as own:
                await workers_ready(gateway_pb2_grpc.GatewayServiceStub(own), len(fleet.workers))
    return Replaced(drained, started, load.whole, load.migrations, load.failures)


def posts_of(fleet: StandingFleet) -> dict[str, Post]:
    """Every process by name."""
    posts = {"manager": fleet.manager}
    posts |= {f"worker {number}": post for number, post in enumerate(fleet.workers)}
    return posts | {f"gateway {number}": post for number, post in enumerate(fleet.gateways)}


async def roll(fleet: StandingFleet, names: Sequence[str]) -> list[Replaced]:
    """Replace the named processes in turn."""
    dice = random.Random(7)
    requests = [
        wanted(dice, PROMPT, temperature=float(number % 2), seed=number, max_tokens=OUTPUT, ignore_eos=True)
        for number in range(STREAMS // 2)
    ] * 2
    replaced = []
    async with to_all(fleet.gateways) as channel:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        alone = [await listen(gateway, one, Heard()) for one in requests[: STREAMS // 2]] * 2
        for name in names:
            replaced.append(await replace(fleet, posts_of(fleet)[name], Load(gateway, requests, alone)))
    await check_whole(fleet)
    return replaced


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("manager", "worker 0", "gateway 1"), id="ci"),
        pytest.param(
            ("manager", "worker 0", "worker 1", "gateway 0", "gateway 1") * 2,
            marks=[pytest.mark.soak, pytest.mark.timeout(1_800)],
            id="soak",
        ),
    ],
)
def test_every_process_is_replaced_and_no_stream_notices(fleet: StandingFleet, names: Sequence[str]) -> None:
    for name, how in zip(names, asyncio.run(roll(fleet, names)), strict=True):
        print(
            f"\n{name}: drained in {how.drained:.1f} s, started in {how.started:.1f} s; {how.whole} streams, "
            f"{how.migrations} moved, {len(how.failures)} refused"
        )
        assert how.whole >= STREAMS
        assert how.drained < ENDED_WITHIN_SECONDS
        assert {failure.tokens for failure in how.failures} <= {0}, how.failures
        assert {failure.code for failure in how.failures} <= {grpc.StatusCode.UNAVAILABLE}, how.failures
        assert name == "manager" or how.failures == []
