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

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(240)]

SECONDS = 60
STREAMS = 16
SEED = 20_261_129
# 100 prompt tokens and 12 of output fill 7 blocks of 16. 40 blocks hold 5 such requests of the 16 that come at once.
PROMPT, OUTPUT, BLOCK, BLOCKS = 100, 12, 16, 40


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


async def one_stream(
    gateway: gateway_pb2_grpc.GatewayServiceAsyncStub, dice: random.Random, until: float, ends: collections.Counter[str]
) -> None:
    """Requests one after another until the time is over: some to their end, some cancelled early, some late."""
    stems = [[1000 + 100 * stem + position for position in range(80)] for stem in range(4)]
    while time.monotonic() < until:
        shared = dice.choice(stems) if dice.random() < 0.5 else []
        prompt = [*shared, *(dice.randrange(100, 49_000) for _ in range(PROMPT - len(shared)))]
        request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=prompt))
        request.options.max_tokens = OUTPUT
        request.options.temperature = 0
        request.options.ignore_eos = True
        fate = dice.choice(["end", "early", "late"])
        call = gateway.Generate(request, timeout=120)
        tokens = 0
        enough = dice.randrange(1, OUTPUT - 2)
        try:
            if fate == "early":
                asyncio.get_running_loop().call_later(dice.uniform(0.0, 2.0), call.cancel)
            async for response in call:
                tokens += len(response.token_ids)
                if fate == "late" and tokens >= enough:
                    call.cancel()
            ends["finished"] += 1
            assert tokens == OUTPUT
        except asyncio.CancelledError:
            ends["cancelled"] += 1
            assert fate != "end"
        except grpc.aio.AioRpcError as error:
            ends[f"{error.code().name}: {error.details()}"] += 1


async def churn(address: str) -> collections.Counter[str]:
    ends: collections.Counter[str] = collections.Counter()
    async with grpc.aio.insecure_channel(address) as channel:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        until = time.monotonic() + SECONDS
        await asyncio.gather(
            *(one_stream(gateway, random.Random(SEED + index), until, ends) for index in range(STREAMS))
        )
    return ends


def test_streams_come_and_go_and_the_pool_is_whole(demo_model: Path) -> None:
    flags = {"num-blocks": BLOCKS, "block-size": BLOCK, "prefill-chunk": BLOCK, "max-sequences": STREAMS}
    with running_stack(demo_model, worker_flags=flags) as stack:
        ends = asyncio.run(churn(stack.gateway.address))
        whole_pool(stack)
        stats = worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address)).GetStats(
            worker_pb2.GetStatsRequest(), timeout=5
        )
    print(f"\n{dict(ends)}\n{stats}")
    assert set(ends) == {"finished", "cancelled"}, ends
    assert stats.delayed_requests >= 50
    assert stats.peak_referenced_blocks > 0.9 * BLOCKS
    assert stats.aborted_in_prefill >= 30
    assert stats.aborted_in_decode >= 30
    assert stats.prefix_hits >= 100
    assert (stats.waiting_requests, stats.running_requests) == (0, 0)
