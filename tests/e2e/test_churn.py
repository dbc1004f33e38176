"""Sixteen streams that come, go and change their minds for a minute, on a pool far too small for them."""

import asyncio
import collections
import random
import time
from pathlib import Path

import grpc
import grpc.aio
import pytest
from processes import Stack, running_stack

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

SECONDS, AT_MOST_SECONDS = 60, 180
STREAMS = 16
SEED = 20_261_129
# Two kinds of requests. Fresh prompts of 112 tokens take 7 steps of 16 to compute and are the ones cancelled early;
# the others share 48 tokens, 3 blocks, with a quarter of all. Either fills at least 5 blocks, 16 of them 80 and more.
FRESH, SHARED, OWN, OUTPUT, BLOCK, BLOCKS = 112, 48, 8, 12, 16, 48
WANTED = {"delayed_requests": 50, "aborted_in_prefill": 30, "aborted_in_decode": 30, "prefix_hits": 100}


def whole_pool(stack: Stack) -> None:
    """Wait, by asking, until every block is free or cached; fail with what is held after ten seconds."""
    kv = kv_manager_pb2_grpc.KvManagerServiceStub(open_channel(stack.manager.address))
    request = inspect_pb2.InspectPoolRequest(pool="default")
    deadline = time.monotonic() + 10
    while True:
        answer = kv.InspectPool(request, timeout=5)
        stats = answer.summary.stats
        if stats.free_blocks + stats.cached_blocks == stats.num_blocks:
            break
        assert time.monotonic() < deadline, answer
    assert list(answer.sequences) == []
    blocks = kv.InspectBlocks(inspect_pb2.InspectBlocksRequest(pool="default", first_block=1, count=65_536), timeout=5)
    assert [block.block for block in blocks.blocks if block.ref_count or block.owners] == []
    verdict = kv.CheckIntegrity(inspect_pb2.CheckIntegrityRequest(pool="default"), timeout=5)
    assert list(verdict.violations) == []


class Churn:
    """Random requests until the time is over and the worker has seen enough of each kind."""

    def __init__(self, gateway: gateway_pb2_grpc.GatewayServiceStub, worker: worker_pb2_grpc.WorkerServiceStub) -> None:
        self.gateway = gateway
        self.worker = worker
        self.ends: collections.Counter[str] = collections.Counter()
        self.first_token_seconds = 1.0  # of fresh prompts, a running mean: early cancels aim at the time before it
        self.over = False

    async def watch(self) -> None:
        began = time.monotonic()
        while not self.over:
            await asyncio.sleep(1.0)
            stats = await self.worker.GetStats(worker_pb2.GetStatsRequest())
            seconds = time.monotonic() - began
            enough = all(getattr(stats, name) >= count for name, count in WANTED.items())
            self.over = seconds >= AT_MOST_SECONDS or (seconds >= SECONDS and enough)

    async def stream(self, dice: random.Random) -> None:
        while not self.over:
            fresh = dice.random() < 0.4
            await self.request(dice, fresh, dice.choice(["end", "early", "early"] if fresh else ["end", "late"]))

    async def request(self, dice: random.Random, fresh: bool, fate: str) -> None:
        stem = dice.randrange(4)
        shared = [] if fresh else [1000 + 100 * stem + position for position in range(SHARED)]
        own = [dice.randrange(100, 49_000) for _ in range(FRESH if fresh else OWN)]
        request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=[*shared, *own]))
        request.options.max_tokens = OUTPUT
        request.options.temperature = 0
        request.options.ignore_eos = True
        began = time.monotonic()
        call = self.gateway.Generate(request, timeout=120)
        if fate == "early":
            delay = dice.uniform(0.2, 1.0) * self.first_token_seconds
            asyncio.get_running_loop().call_later(delay, call.cancel)
        enough = dice.randrange(1, OUTPUT - 2)
        tokens = 0
        try:
            async for response in call:
                if fresh and not tokens:
                    self.first_token_seconds += 0.1 * (time.monotonic() - began - self.first_token_seconds)
                tokens += len(response.token_ids)
                if fate == "late" and tokens >= enough:
                    call.cancel()
            self.ends["finished"] += 1
            assert tokens == OUTPUT
        except asyncio.CancelledError:
            self.ends["cancelled"] += 1
            assert fate != "end"
        except grpc.aio.AioRpcError as error:
            self.ends[f"{error.code().name}: {error.details()}"] += 1


async def churn(stack: Stack) -> collections.Counter[str]:
    async with (
        grpc.aio.insecure_channel(stack.gateway.address) as front,
        grpc.aio.insecure_channel(stack.worker.address) as back,
    ):
        load = Churn(gateway_pb2_grpc.GatewayServiceStub(front), worker_pb2_grpc.WorkerServiceStub(back))
        streams = [load.stream(random.Random(SEED + index)) for index in range(STREAMS)]
        await asyncio.gather(load.watch(), *streams)
        return load.ends


def test_streams_come_and_go_and_the_pool_is_whole(demo_model: Path) -> None:
    flags = {"num-blocks": BLOCKS, "block-size": BLOCK, "prefill-chunk": BLOCK, "max-sequences": STREAMS}
    with running_stack(demo_model, worker_flags=flags) as stack:
        ends = asyncio.run(churn(stack))
        whole_pool(stack)
        stats = worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address)).GetStats(
            worker_pb2.GetStatsRequest(), timeout=5
        )
    print(f"\n{dict(ends)}\n{stats}")
    assert set(ends) == {"finished", "cancelled"}, ends
    assert stats.peak_referenced_blocks > 0.9 * BLOCKS
    for name, count in WANTED.items():
        assert getattr(stats, name) >= count, name
    assert (stats.waiting_requests, stats.running_requests) == (0, 0)
