"""A pool as its KV manager shows it: whether what a request held has been given back."""

import time
from collections.abc import Callable

from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc

# Design 5: cancel, disconnect and deadline reach the worker within two steps, and the blocks within a second.
FREE_SECONDS, STEPS = 1.0, 2
# What a machine may take that has better things to do: in all, and in looks at the pool as long as they take there.
STARVED_SECONDS, LOOKS = 60.0, 50


class PoolView:
    """One pool of a manager.

    Args:
        steps: how many steps its worker has run.
    """

    def __init__(self, manager: kv_manager_pb2_grpc.KvManagerServiceStub, pool: str, steps: Callable[[], int]) -> None:
        self._manager = manager
        self._pool = pool
        self._steps = steps

    def held(self) -> int:
        """Blocks that are neither free nor cached."""
        stats = self.summary().stats
        return stats.num_blocks - stats.free_blocks - stats.cached_blocks

    def summary(self) -> inspect_pb2.PoolSummary:
        return self._manager.InspectPool(
            inspect_pb2.InspectPoolRequest(pool=self._pool), timeout=STARVED_SECONDS
        ).summary

    def check_free_soon(self) -> None:
        """Nobody holds anything within a second, or two steps where those take longer; and every invariant holds."""
        began, steps, allowed = time.monotonic(), self._steps(), FREE_SECONDS
        looked = began
        while self.held():
            looked, before = time.monotonic(), looked
            allowed = max(allowed, LOOKS * (looked - before))
            seconds = looked - began
            assert seconds < STARVED_SECONDS, self.summary()
            assert seconds < allowed or self._steps() - steps <= STEPS, self.summary()
        verdict = self._manager.CheckIntegrity(
            inspect_pb2.CheckIntegrityRequest(pool=self._pool), timeout=STARVED_SECONDS
        )
        assert list(verdict.violations) == []
