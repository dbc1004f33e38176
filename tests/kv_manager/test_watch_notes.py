"""Events are noted while a step is served and become messages when somebody reads them, however late."""

import random
import struct

import pytest
from kv_world import World
from test_kv_worlds import REGIMES

from kv_manager.core import watching
from kv_manager.core.journal import KINDS
from kv_manager.core.manager import Manager
from kv_manager.core.slices import at_once
from octavo.kv.v1 import attach_pb2, steps_pb2, watch_pb2

pytestmark = pytest.mark.property

CHOSEN = (
    "everything",
    "everything, samples",
    "window, beams",
    "failed steps, drafts",
    "beams, fenced",
    "everything, restarts, failed steps",
    "late hits, fenced, two in flight",
)


def told(regime, seed, every):
    """All events of a life, as bytes: read after every so many steps."""
    manager, watches, events, steps = Manager(), [], [], 0

    def read():
        events.extend(each.SerializeToString(deterministic=True) for each in at_once(watches[-1].poll()))

    def attach(spec, live):
        parts = [attach_pb2.AttachRequest(pool=spec)]
        parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
        epoch = manager.attach(parts).header.epoch
        if watches:
            read()  # to the end of the pool before
        watches.append(manager.watch(watch_pb2.WatchRequest(pool="world", kinds=KINDS), lambda: None))
        read()
        return epoch

    world = World(regime, random.Random(seed), attach, manager.step)
    while not world.finished:
        world.tick()
        steps += 1
        if steps % every == 0:
            read()
    world.finish()
    read()
    return events


@pytest.mark.parametrize("name", CHOSEN)
def test_what_is_read_late_is_what_was_so_then(name):
    """An event says what its step has left behind, however many steps later it is made a message."""
    heard = [told(REGIMES[name], seed, 1) for seed in range(6)]
    assert [told(REGIMES[name], seed, 9) for seed in range(6)] == heard
    assert sum(map(len, heard)) > 100


def test_a_long_batch_is_made_in_slices(monkeypatch):
    """An event per slice. What happens between two of them comes with the next batch, and nothing is told twice."""
    monkeypatch.setattr(watching, "SLICE_WEIGHT", 1)
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=64, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    watch = manager.watch(watch_pb2.WatchRequest(pool="world", kinds=KINDS, batch_ms=100), lambda: None)
    start = at_once(watch.poll())[-1].sequence

    def admit(step):
        request = steps_pb2.StepRequest(pool="world", epoch=epoch, step=step, completed_step=step - 1)
        request.admits.add(seq=step, token_ids=struct.pack("<2I", step, 0), num_tokens=2)
        manager.step(request)

    for step in (1, 2, 3):
        admit(step)
    work = watch.poll()
    assert next(work) is None
    admit(4)
    *pauses, first = work
    (second,) = [each for each in watch.poll() if each is not None]
    assert pauses == [None] * (len(first.batch.events) - 1)
    assert first.header.step == 3
    assert second.header.step == 4
    numbers = [event.sequence for batch in (first, second) for event in batch.batch.events]
    assert numbers == list(range(start + 1, start + 1 + len(numbers)))
