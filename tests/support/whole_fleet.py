"""Whether a fleet is whole at rest: no request lives at a worker, and every block of every pool is free or cached."""

import asyncio
import time

import grpc.aio
from standing_fleet import POOLS, StandingFleet

from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

WITHIN_SECONDS = 120.0
ASK_SECONDS = 30.0


async def check_whole(fleet: StandingFleet) -> None:
    """Ask until it is so.

    Raises:
        AssertionError: something is held after two minutes, or an invariant of a pool is broken.
    """
    deadline = time.monotonic() + WITHIN_SECONDS
    for worker in fleet.workers:
        async with grpc.aio.insecure_channel(worker.address) as channel:
            await _idle(worker_pb2_grpc.WorkerServiceStub(channel), deadline)
    async with grpc.aio.insecure_channel(fleet.manager.address) as channel:
        manager = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        for pool in POOLS:
            await _empty(manager, pool, deadline)
            request = inspect_pb2.CheckIntegrityRequest(pool=pool)
            verdict = await manager.CheckIntegrity(request, timeout=ASK_SECONDS)
            assert list(verdict.violations) == [], pool


async def _idle(worker: worker_pb2_grpc.WorkerServiceStub, deadline: float) -> None:
    while True:
        stats = await worker.GetStats(worker_pb2.GetStatsRequest(), timeout=ASK_SECONDS)
        if not stats.waiting_requests and not stats.running_requests:
            return
        assert time.monotonic() < deadline, stats
        await asyncio.sleep(0.02)


async def _empty(manager: kv_manager_pb2_grpc.KvManagerServiceStub, pool: str, deadline: float) -> None:
    while True:
        answer = await manager.InspectPool(inspect_pb2.InspectPoolRequest(pool=pool), timeout=ASK_SECONDS)
        stats = answer.summary.stats
        if stats.free_blocks + stats.cached_blocks == stats.num_blocks and not answer.sequences:
            return
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.02)
