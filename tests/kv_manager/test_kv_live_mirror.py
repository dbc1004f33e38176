"""The mirror behind ``octavo inspect --live``, kept by Watch alone through whole lives of workers in many regimes."""

import random

import pytest
from kv_world import World
from test_kv_worlds import REGIMES

from cli.live.mirror import SHARED, Mirror
from kv_manager.core import views
from kv_manager.core.manager import Manager
from kv_manager.core.pool import Pool
from kv_manager.core.slices import at_once
from octavo.kv.v1 import attach_pb2, inspect_pb2, watch_pb2
from service.watched import PAGE_KINDS

pytestmark = pytest.mark.property

CHOSEN = [
    "a host tier too small",
    "fenced, swap, two in flight",
    "outgrows the pool",
    "beams, swap",
    "failed steps",
    "restarts, fenced, swap",
    "window, beams",
    "everything, samples",
    "everything, quotas",
]


class Listener:
    """Watches the pool of one Attach."""

    def __init__(self, manager: Manager) -> None:
        self.manager, self.mirror, self.overcounted = manager, Mirror(), 0
        self.watch = manager.watch(watch_pb2.WatchRequest(pool="world", kinds=PAGE_KINDS), lambda: None)

    def listen(self) -> None:
        for response in at_once(self.watch.poll()):
            if self.mirror.begins(response):
                self.mirror.begin(self.manager.inspect_pool(inspect_pb2.InspectPoolRequest(pool="world")))
            self.mirror.hear(response)

    def check(self, pool: Pool) -> None:
        mirror, pages, stats = self.mirror, self.mirror.pages, views.stats(pool)
        assert pages is not None
        free, cached, referenced, shared, fenced = pages.counts
        assert (free, cached, referenced + shared, fenced) == (
            *(stats.free_blocks, stats.cached_blocks, stats.referenced_blocks, stats.fenced_blocks),
        )
        assert [code == SHARED for code in pages.codes] == [count > 1 for count in pool.blocks.ref_count[1:]]
        assert pages.tables == {seq: each.table for seq, each in pool.sequences.items() if each.table}
        running = {seq: each.running for seq, each in pool.sequences.items()}
        states = {seq: each.state == inspect_pb2.SEQUENCE_STATE_RUNNING for seq, each in pages.sequences.items()}
        assert states == running
        assert list(mirror.preemptions) == views.preemptions(pool)
        assert (mirror.lookup_tokens, mirror.hit_tokens) == (pool.totals.lookup_tokens, pool.totals.hit_tokens)
        parked = stats.host_blocks - stats.host_free_blocks
        assert pages.host_blocks() >= parked
        if pages.host_blocks() > parked:
            self.overcounted += 1


@pytest.mark.parametrize("name", CHOSEN)
def test_a_mirror_equals_the_pool_after_every_step(name: str) -> None:
    steps = 0
    for seed in range(12):
        manager = Manager()
        listeners: list[Listener] = []

        def attach(
            spec: attach_pb2.PoolSpec,
            live: list[attach_pb2.LiveSequence],
            manager: Manager = manager,
            listeners: list[Listener] = listeners,
        ) -> int:
            parts = [attach_pb2.AttachRequest(pool=spec)]
            parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
            epoch = int(manager.attach(parts).header.epoch)
            listeners.append(Listener(manager))
            return epoch

        world = World(REGIMES[name], random.Random(seed), attach, manager.step)
        while not world.finished:
            world.tick()
            listeners[-1].listen()
            listeners[-1].check(manager.pools()[0])
            steps += 1
        # No event tells host blocks: exact but for windows, and for members forked in the very step of the swap.
        if not REGIMES[name].forks and not REGIMES[name].window:
            assert not any(listener.overcounted for listener in listeners)
    assert steps > 100
