"""Ends that cross (field report B19): aborts, ends of transfers, a lost stream and the lease's end, in any order.

A step moves blocks; before its end is told, its sequences may be aborted, the worker's stream may break and the lease
may run out. Whatever comes first: after each message every block is in exactly one place (I1) and named as often as it
is counted (I2), so none is released twice; in the end all blocks are free, or the pool is gone and a new one is free.
"""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_manager.core import integrity
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.property

LEASE_MS = 2_000
NUM_BLOCKS, HOST_BLOCKS, BLOCK_SIZE = 6, 6, 2
REGIMES = {
    "ordered": (common_pb2.REUSE_REGIME_ORDERED, False),
    "ordered, swaps apart": (common_pb2.REUSE_REGIME_ORDERED, True),
    "fenced": (common_pb2.REUSE_REGIME_FENCED, True),
}


class World:
    """One pool in the middle of a transfer, and its worker's messages."""

    def __init__(self, regime: str, transfer: str) -> None:
        self.manager = Manager(lease_ms=LEASE_MS)
        reuse, own_stream = REGIMES[regime]
        self.spec = attach_pb2.PoolSpec(
            pool="pool",
            worker_id="w",
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            block_bytes=1,
            host_blocks=HOST_BLOCKS,
            reuse_regime=reuse,
            swaps_on_own_stream=own_stream,
            # Recomputing is dear and copying cheap, so victims are swapped out.
            rates=common_pb2.Rates(prefill_tokens_per_second=1, copy_bytes_per_second=1e9),
        )
        self.epoch = self.manager.attach([attach_pb2.AttachRequest(pool=self.spec)]).header.epoch
        self.manager.lease("pool", self.epoch).open_stream()
        self.connected, self.step, self.completed = True, 0, 0
        self.last: steps_pb2.StepResponse
        getattr(self, f"_{transfer}")()
        self.pending = self.step

    def send(self, **items: object) -> steps_pb2.StepResponse:
        request = steps_pb2.StepRequest(
            pool="pool", epoch=self.epoch, step=self.step + 1, completed_step=self.completed, **items
        )
        self.last = self.manager.step(request)
        self.step += 1
        return self.last

    def _admit(self, seq: int, first: int, tokens: int) -> steps_pb2.Admit:
        ids = b"".join(token.to_bytes(4, "little") for token in range(first, first + tokens))
        return steps_pb2.Admit(seq=seq, token_ids=ids, num_tokens=tokens, arrival=seq)

    # --- transfers under way

    def _swap_out(self) -> None:
        """Sequences of 3 and 2 blocks in a pool of 6; sequence 1 asks for two more, so sequence 2 is swapped out."""
        self.send(admits=[self._admit(1, 0, 6), self._admit(2, 100, 4)])
        self.completed = 1
        self.send(advances=steps_pb2.Advances(seqs=[1], num_tokens=[10]))
        assert len(self.last.swaps_out.sources) == 2

    def _swap_in(self) -> None:
        """The same, and sequence 2 comes back once sequence 1 is gone."""
        self._swap_out()
        self.completed = 2
        self.send(releases=[steps_pb2.Release(seq=1)])
        self.completed = 3
        self.send(resumes=[steps_pb2.Resume(seq=2, num_tokens=4)])
        assert len(self.last.swaps_in.sources) == 2

    def _copy(self) -> None:
        """A fork of 3 tokens shares a half-filled block; both write, one gets a copy."""
        self.send(admits=[self._admit(1, 0, 3)])
        self.completed = 1
        self.send(
            forks=[steps_pb2.Fork(parent=1, children=[2], num_tokens=3)],
            advances=steps_pb2.Advances(seqs=[1, 2], num_tokens=[4, 4]),
        )
        assert len(self.last.copies.sources) == 1

    # --- events

    def abort(self, seq: int) -> None:
        self._tell(lambda: self.send(releases=[steps_pb2.Release(seq=seq, reason=steps_pb2.RELEASE_REASON_ABORTED)]))

    def transfer_done(self) -> None:
        self.completed = max(self.completed, self.pending)
        self._tell(self.send)

    def disconnect(self) -> None:
        if self.connected and self.manager.pools():
            self.manager.lease("pool", self.epoch).close_stream()
        self.connected = False

    def lease_expiry(self) -> None:
        for _ in range(LEASE_MS // 1_000):
            due = self.manager.tick(1_000)
        expired = [self.manager.expire(*each) for each in due]
        assert expired == ([] if self.connected or not self.alive_before else [True])

    def _tell(self, message) -> None:
        """Once the pool is gone, every message is told so and changes nothing."""
        if self.manager.pools():
            message()
            return
        with pytest.raises(ServiceError) as caught:
            message()
        assert caught.value.reason == "POOL_NOT_FOUND"

    def happen(self, event: str) -> None:
        self.alive_before = bool(self.manager.pools())
        name, _, argument = event.partition(" ")
        getattr(self, name)(*([int(argument)] if argument else []))
        for pool in self.manager.pools():
            assert integrity.violations(pool) == []

    def settle(self) -> None:
        """The end: everything released and completed, or the pool dropped and attached anew."""
        if not self.manager.pools():
            self.epoch = self.manager.attach([attach_pb2.AttachRequest(pool=self.spec)]).header.epoch
            self.step = self.completed = 0
        self.completed = self.step
        self.send()
        stats = self.last.stats
        assert stats.free_blocks + stats.cached_blocks == NUM_BLOCKS
        assert stats.host_free_blocks == HOST_BLOCKS
        assert integrity.violations(self.manager.pools()[0]) == []
        assert sorted(self.manager.pools()[0].blocks.grant_order()) == list(range(1, NUM_BLOCKS + 1))


EVENTS = ("abort 1", "abort 2", "transfer_done", "disconnect", "lease_expiry")


@pytest.mark.parametrize("transfer", ["swap_out", "swap_in", "copy"])
@pytest.mark.parametrize("regime", REGIMES)
def test_every_order_of_ends(regime, transfer):
    """5! = 120 orders of each regime and transfer."""
    for order in itertools.permutations(EVENTS):
        world = World(regime, transfer)
        for event in order:
            world.happen(event)
        world.settle()


@settings(deadline=None)
@given(
    regime=st.sampled_from(sorted(REGIMES)),
    transfer=st.sampled_from(["swap_out", "swap_in", "copy"]),
    events=st.lists(st.sampled_from(EVENTS), max_size=12),
)
def test_ends_that_come_twice_or_never(regime, transfer, events):
    """A second abort is accepted, a second completion too; what never came is made up for at the end."""
    world = World(regime, transfer)
    for event in events:
        world.happen(event)
    for seq in (1, 2):
        world.happen(f"abort {seq}")
    world.settle()
