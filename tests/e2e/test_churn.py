"""Sixteen streams that come, go and change their minds, on a pool that holds half of them; each ends as if alone.

A minute of it in CI, twenty in `make soak`.
"""

import asyncio
import collections
import itertools
import random
import time
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest
from processes import Stack, running_stack

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model]

CI_SECONDS, SOAK_SECONDS, PATIENCE_SECONDS = 60, 1_200, 180
STREAMS = 16
SEED = 20_261_129
# Two kinds of requests. Fresh prompts of 112 tokens take 7 steps of 16 to compute and are the ones cancelled early;
# the others share 48 tokens, 3 blocks, with a quarter of all. Either fills at least 5 blocks, 16 of them 80 and more.
FRESH, SHARED, OWN, OUTPUT, BLOCK, BLOCKS = 112, 48, 8, 12, 16, 48
WANTED = {"delayed_requests": 50, "aborted_in_prefill": 30, "aborted_in_decode": 30, "prefix_hits": 100}
# Of either kind so many different prompts, whose lone texts are known; a fresh one comes under a salt of its own.
STEMS, TAILS, FRESH_PROMPTS = 4, 2, 4
# No token for anybody for so long is a stall; the machines of CI have neighbours who hold up all processes for seconds,
# and a stall that is our own does not end.
CI_STALL_SECONDS, SOAK_STALL_SECONDS = 30.0, 2.0
# A leak grows on; what the allocator keeps for the largest batch is there after the first third.
GROWTH_BYTES = 32 << 20


def whole_pool(stack: Stack) -> None:
    """Wait, by asking, until every block is free or cached; fail with what is held after a minute."""
    kv = kv_manager_pb2_grpc.KvManagerServiceStub(open_channel(stack.manager.address))
    request = inspect_pb2.InspectPoolRequest(pool="default")
    deadline = time.monotonic() + 60
    while True:
        answer = kv.InspectPool(request, timeout=30)
        stats = answer.summary.stats
        if stats.free_blocks + stats.cached_blocks == stats.num_blocks:
            break
        assert time.monotonic() < deadline, answer
    assert list(answer.sequences) == []
    blocks = kv.InspectBlocks(inspect_pb2.InspectBlocksRequest(pool="default", first_block=1, count=65_536), timeout=30)
    assert [block.block for block in blocks.blocks if block.ref_count or block.owners] == []
    verdict = kv.CheckIntegrity(inspect_pb2.CheckIntegrityRequest(pool="default"), timeout=30)
    assert list(verdict.violations) == []


def prompts(dice: random.Random) -> dict[str, list[int]]:
    """Every prompt by name."""

    def own(count: int) -> list[int]:
        return [dice.randrange(100, 49_000) for _ in range(count)]

    stems = [[1000 + 100 * stem + position for position in range(SHARED)] for stem in range(STEMS)]
    made = {f"shared {stem} {tail}": [*stems[stem], *own(OWN)] for stem in range(STEMS) for tail in range(TAILS)}
    return made | {f"fresh {number}": own(FRESH) for number in range(FRESH_PROMPTS)}


class Churn:
    """Random requests until the time is over and the worker has seen enough of each kind."""

    def __init__(
        self,
        gateway: gateway_pb2_grpc.GatewayServiceStub,
        worker: worker_pb2_grpc.WorkerServiceStub,
        process: psutil.Process,
        seconds: float,
    ) -> None:
        self.gateway = gateway
        self.worker = worker
        self.process = process
        self.seconds = seconds
        self.prompts = prompts(random.Random(SEED))
        self.texts: dict[str, list[int]] = {}
        self.salts = itertools.count()
        self.resident: list[int] = []
        self.last_token = self.longest_stall = 0.0
        self.ends: collections.Counter[str] = collections.Counter()
        self.first_token_seconds = 1.0  # of fresh prompts, a running mean: early cancels aim at the time before it
        self.over = False

    async def watch(self) -> None:
        began = time.monotonic()
        while not self.over:
            await asyncio.sleep(1.0)
            self.resident.append(self.process.memory_info().rss)
            stats = await self.worker.GetStats(worker_pb2.GetStatsRequest())
            seconds = time.monotonic() - began
            enough = all(getattr(stats, name) >= count for name, count in WANTED.items())
            self.over = seconds >= self.seconds + PATIENCE_SECONDS or (seconds >= self.seconds and enough)

    async def learn_texts(self) -> None:
        """What each prompt gives alone."""
        for name, ids in self.prompts.items():
            call = self.gateway.Generate(self.wanted(ids, "alone"), timeout=120)
            self.texts[name] = [token async for response in call for token in response.token_ids]
            assert len(self.texts[name]) == OUTPUT

    def wanted(self, ids: list[int], salt: str) -> gateway_pb2.GenerateRequest:
        request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=ids))
        request.options.max_tokens = OUTPUT
        request.options.temperature = 0
        request.options.ignore_eos = True
        request.options.cache_salt = salt
        return request

    def took(self, name: str, tokens: list[int]) -> None:
        """New tokens came: they are those of the lone run."""
        now = time.monotonic()
        self.longest_stall = max(self.longest_stall, now - (self.last_token or now))
        self.last_token = now
        assert tokens == self.texts[name][: len(tokens)], name

    async def stream(self, dice: random.Random) -> None:
        while not self.over:
            fresh = dice.random() < 0.4
            await self.request(dice, fresh, dice.choice(["end", "early", "early"] if fresh else ["end", "late"]))

    async def request(self, dice: random.Random, fresh: bool, fate: str) -> None:
        kind = "fresh" if fresh else "shared"
        name = dice.choice([one for one in self.prompts if one.startswith(kind)])
        request = self.wanted(self.prompts[name], f"{next(self.salts)}" if fresh else "")
        began = time.monotonic()
        call = self.gateway.Generate(request, timeout=120)
        if fate == "early":
            delay = dice.uniform(0.2, 1.0) * self.first_token_seconds
            asyncio.get_running_loop().call_later(delay, call.cancel)
        enough = dice.randrange(1, OUTPUT - 2)
        tokens: list[int] = []
        try:
            async for response in call:
                if fresh and not tokens:
                    self.first_token_seconds += 0.1 * (time.monotonic() - began - self.first_token_seconds)
                tokens += response.token_ids
                self.took(name, tokens)
                if fate == "late" and len(tokens) >= enough:
                    call.cancel()
            self.ends["finished"] += 1
            assert len(tokens) == OUTPUT
        except asyncio.CancelledError:
            self.ends["cancelled"] += 1
            assert fate != "end"
        except grpc.aio.AioRpcError as error:
            self.ends[f"{error.code().name}: {error.details()}"] += 1


async def churn(stack: Stack, seconds: float) -> Churn:
    async with (
        grpc.aio.insecure_channel(stack.gateway.address) as front,
        grpc.aio.insecure_channel(stack.worker.address) as back,
    ):
        load = Churn(
            gateway_pb2_grpc.GatewayServiceStub(front),
            worker_pb2_grpc.WorkerServiceStub(back),
            psutil.Process(stack.worker.process.pid),
            seconds,
        )
        await load.learn_texts()
        streams = [load.stream(random.Random(SEED + index)) for index in range(STREAMS)]
        await asyncio.gather(load.watch(), *streams)
        return load


@pytest.mark.parametrize(
    ("seconds", "stall_seconds"),
    [
        pytest.param(CI_SECONDS, CI_STALL_SECONDS, marks=pytest.mark.timeout(420), id="ci"),
        pytest.param(SOAK_SECONDS, SOAK_STALL_SECONDS, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)], id="soak"),
    ],
)
def test_streams_come_and_go_and_the_pool_is_whole(demo_model: Path, seconds: float, stall_seconds: float) -> None:
    flags = {"num-blocks": BLOCKS, "block-size": BLOCK, "prefill-chunk": BLOCK, "max-sequences": STREAMS}
    with running_stack(demo_model, worker_flags=flags) as stack:
        load = asyncio.run(churn(stack, seconds))
        whole_pool(stack)
        stats = worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address)).GetStats(
            worker_pb2.GetStatsRequest(), timeout=30
        )
    third = len(load.resident) // 3
    growth = max(load.resident[-third:]) - max(load.resident[third : 2 * third])
    print(f"\n{dict(load.ends)}, longest stall {load.longest_stall:.2f} s, grown by {growth >> 10} KiB\n{stats}")
    assert set(load.ends) == {"finished", "cancelled"}, load.ends
    assert stats.peak_referenced_blocks > 0.9 * BLOCKS
    for name, count in WANTED.items():
        assert getattr(stats, name) >= count, name
    assert stats.preemptions > 0
    assert (stats.waiting_requests, stats.running_requests) == (0, 0)
    assert load.longest_stall < stall_seconds
    assert growth < GROWTH_BYTES
