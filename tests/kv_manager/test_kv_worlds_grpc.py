"""The same lives over real gRPC: a process of ours, its own messages, the oracle beside it."""

import os
import random

import pytest
from kv_oracle import Oracle, decode
from kv_world import World, check_free
from test_kv_worlds import REGIMES

from octavo.kv.v1 import attach_pb2, inspect_pb2, kv_manager_pb2_grpc, steps_pb2

pytestmark = pytest.mark.e2e

SOAK_OPERATIONS = int(os.environ.get("OCTAVO_TEST_KV_GRPC_OPERATIONS", "1000000"))


class Remote:
    """A manager behind a stub; one pool, attached anew for every life and every restart."""

    def __init__(self, stub: kv_manager_pb2_grpc.KvManagerServiceStub) -> None:
        self.stub = stub
        self.epoch = self.step = 0

    def attach(self, spec: attach_pb2.PoolSpec, live: list[attach_pb2.LiveSequence]) -> int:
        parts = [attach_pb2.AttachRequest(pool=spec)]
        parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
        header = self.stub.Attach(iter(parts)).header
        assert header.epoch > self.epoch
        self.epoch, self.step = header.epoch, header.step
        self.oracle = Oracle(spec, live)
        return self.epoch

    def answer(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        response = self.stub.Step(request)
        if request.step == self.step + 1:
            self.step = request.step
            assert decode(response) == self.oracle.apply(request)
        return response

    def available(self) -> int:
        """Blocks that can be granted, once nothing is in flight; the invariants are checked on the way."""
        check = self.stub.CheckIntegrity(inspect_pb2.CheckIntegrityRequest(pool="world"))
        assert list(check.violations) == []
        stats = self.stub.InspectPool(inspect_pb2.InspectPoolRequest(pool="world")).summary.stats
        return stats.free_blocks + stats.cached_blocks


def live_over_grpc(manager, least_operations):
    """Lives in every regime in turn, seeds 0, 1, ..., until they have made enough operations."""
    operations = lives = 0
    remote = Remote(manager.stub)
    names = sorted(REGIMES)
    while operations < least_operations:
        regime = REGIMES[names[lives % len(names)]]
        world = World(regime, random.Random(lives), remote.attach, remote.answer)
        while not world.finished:
            world.tick()
            assert world.clock < 500
        world.finish()
        check_free(world, remote.available())
        operations += world.operations
        lives += 1
    print(f"{operations} operations in {lives} lives over gRPC")


def test_lives_over_grpc(run_manager):
    with run_manager("--metrics", "") as manager:
        live_over_grpc(manager, 20_000)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3_600)
def test_a_million_operations_over_grpc(run_manager):
    """One manager all along. CI runs 20,000 of them; ``OCTAVO_TEST_KV_GRPC_OPERATIONS`` asks for another number."""
    with run_manager("--metrics", "") as manager:
        first = manager.resident_bytes()
        live_over_grpc(manager, SOAK_OPERATIONS)
        print(f"resident {first / 1e6:.1f} -> {manager.resident_bytes() / 1e6:.1f} MB")
