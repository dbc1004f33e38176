"""Events are noted while a step is served and become messages when somebody reads them, however late."""

import random
import struct

import pytest
from kv_world import World
from test_kv_worlds import REGIMES
from test_watching import Mirror

from kv_manager.core import watching
from kv_manager.core.journal import KINDS
from kv_manager.core.manager import Manager
from kv_manager.core.pool import Pool
from kv_manager.core.slices import at_once
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, steps_pb2, watch_pb2

pytestmark = pytest.mark.property

EACH_STEP = (watch_pb2.EVENT_KIND_CACHE, watch_pb2.EVENT_KIND_TABLES, watch_pb2.EVENT_KIND_SEQUENCES)
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
    """All events of a life but those of blocks, as bytes: read after every so many steps."""
    manager, watches, events, steps = Manager(), [], [], 0

    def read():
        events.extend(each.SerializeToString(deterministic=True) for each in at_once(watches[-1].poll()))

    def attach(spec, live):
        parts = [attach_pb2.AttachRequest(pool=spec)]
        parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
        epoch = manager.attach(parts).header.epoch
        if watches:
            read()  # to the end of the pool before
        watches.append(manager.watch(watch_pb2.WatchRequest(pool="world", kinds=EACH_STEP), lambda: None))
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
    """Digests, tables and sequences: what a step has left behind, however many steps later it is made a message."""
    heard = [told(REGIMES[name], seed, 1) for seed in range(6)]
    assert [told(REGIMES[name], seed, 9) for seed in range(6)] == heard
    assert sum(map(len, heard)) > 100


@pytest.mark.parametrize("name", CHOSEN)
def test_blocks_that_many_steps_change_are_told_once_as_they_then_are(name):
    """Whoever reads every seventh step agrees with the pool then, and hears of blocks at most once for the seven."""
    told = read = 0
    for seed in range(4):
        manager, mirrors = Manager(), []

        def attach(spec, live, manager=manager, mirrors=mirrors):
            parts = [attach_pb2.AttachRequest(pool=spec)]
            parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
            epoch = manager.attach(parts).header.epoch
            mirrors.append(Mirror(manager, KINDS).read_all())
            return epoch

        world, steps = World(REGIMES[name], random.Random(seed), attach, manager.step), 0
        while not world.finished:
            world.tick()
            steps += 1
            if steps % 7 == 0:
                events = at_once(mirrors[-1].watch.poll())
                for event in events:
                    mirrors[-1].hear(event)
                mirrors[-1].agrees(manager.pools()[0])
                assert sum(event.HasField("blocks") for event in events) <= 1  # no pool has more than EVENT_BLOCKS
                told += any(event.HasField("blocks") for event in events)
                read += 1
    assert told > read / 2


@pytest.mark.parametrize("name", CHOSEN)
def test_an_account_between_two_looks_is_what_was_told_up_to_its_step(name):
    """Accounts are asked for after every third step and events read after every seventh: recordings compare the two."""
    compared = 0
    for seed in range(12):
        manager, mirrors, accounts = Manager(), [], []

        def attach(spec, live, manager=manager, mirrors=mirrors, accounts=accounts):
            parts = [attach_pb2.AttachRequest(pool=spec)]
            parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
            epoch = manager.attach(parts).header.epoch
            mirrors.append(Mirror(manager, KINDS).read_all())
            accounts.clear()
            return epoch

        world, steps = World(REGIMES[name], random.Random(seed), attach, manager.step), 0
        while not world.finished:
            world.tick()
            steps += 1
            if steps % 3 == 0:
                accounts.append(manager.inspect_pool(inspect_pb2.InspectPoolRequest(pool="world")))
            if steps % 7 == 0:
                mirror = mirrors[-1]
                for event in at_once(mirror.watch.poll()):
                    while accounts and accounts[0].summary.header.step < event.header.step:
                        agree(mirror, accounts.pop(0))
                        compared += 1
                    mirror.hear(event)
    assert compared > 15


def agree(mirror, account):
    """Blocks by their state, and the lengths of tables."""
    states = [info.state for info in mirror.blocks.values()]
    stats = account.summary.stats
    assert states.count(inspect_pb2.BLOCK_STATE_REFERENCED) == stats.referenced_blocks
    assert states.count(inspect_pb2.BLOCK_STATE_CACHED) == stats.cached_blocks
    running = {
        one.seq: one.num_blocks
        for one in account.sequences
        if one.num_blocks and one.state == inspect_pb2.SEQUENCE_STATE_RUNNING
    }
    assert {seq: len(table) for seq, table in mirror.tables.items() if table} == running


def test_nobody_is_woken_by_a_step_that_tells_him_nothing():
    """A decode step lets a table grow. Who watches sequences or digests has nothing to hear, who watches tables has."""
    manager, woken = Manager(), []
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=64, block_size=4, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    admit = steps_pb2.Admit(seq=1, token_ids=bytes(16), num_tokens=4)
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=[admit]))
    watches = []
    for expected, kinds in enumerate(([watch_pb2.EVENT_KIND_SEQUENCES], [watch_pb2.EVENT_KIND_TABLES])):
        watches.append(manager.watch(watch_pb2.WatchRequest(pool="world", kinds=kinds), lambda: woken.append(1)))
        at_once(watches[-1].poll())
        woken.clear()
        step = 2 + expected
        advances = steps_pb2.Advances(seqs=[1], num_tokens=[4 * step])
        request = steps_pb2.StepRequest(pool="world", epoch=epoch, step=step, completed_step=step - 1)
        request.advances.CopyFrom(advances)
        assert manager.step(request).grants
        assert bool(woken) is bool(expected)


def test_who_leaves_while_the_end_of_a_pool_is_told_hides_it_from_nobody():
    """Another thread may close a watch at any moment; here it does at the worst one."""
    manager, woken = Manager(), []
    spec = attach_pb2.PoolSpec(pool="pool", worker_id="w", num_blocks=4, block_size=4)
    spec.reuse_regime = common_pb2.REUSE_REGIME_ORDERED
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    asked = watch_pb2.WatchRequest(pool="pool")
    leaving = manager.watch(asked, lambda: leaving.close())
    manager.watch(asked, lambda: woken.append("stays"))
    manager.detach(attach_pb2.DetachRequest(pool="pool", epoch=epoch))
    assert woken == ["stays"]


def test_a_step_that_fails_half_way_is_not_told(monkeypatch):
    """It has changed the table's blocks when it fails: its pool is dropped, and watchers hear no more than that."""
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=64, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    watch = manager.watch(watch_pb2.WatchRequest(pool="world", kinds=KINDS), lambda: None)
    assert at_once(watch.poll())[-1].snapshot.last
    admit = steps_pb2.Admit(seq=1, token_ids=bytes(12), num_tokens=3)
    pool = manager.pools()[0]

    def fail(pool, stats):
        raise RuntimeError

    monkeypatch.setattr(Pool, "fill_stats", fail)
    with pytest.raises(RuntimeError):
        manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=[admit]))
    assert pool.blocks.referenced_blocks == 3
    assert [event.WhichOneof("event") for event in at_once(watch.poll())] == ["pool_dropped"]


def test_a_watch_goes_on_in_the_middle_of_a_step():
    """One step lets four tables grow: four events, of which somebody who comes back has heard none to all."""
    manager, tables = Manager(), [watch_pb2.EVENT_KIND_TABLES]
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=64, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    admits = [steps_pb2.Admit(seq=seq, token_ids=bytes(8), num_tokens=2) for seq in (1, 2, 3, 4)]
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=admits))
    watch = manager.watch(watch_pb2.WatchRequest(pool="world", kinds=tables), lambda: None)
    last = at_once(watch.poll())[-1]
    advances = steps_pb2.Advances(seqs=[1, 2, 3, 4], num_tokens=[3] * 4)
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=2, completed_step=1, advances=advances))
    events = at_once(watch.poll())
    assert [(event.table.seq, event.table.first_index) for event in events] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    for heard in range(5):
        position = watch_pb2.WatchPosition(
            manager_id=manager.manager_id, epoch=epoch, sequence=last.sequence + heard, kinds=tables
        )
        again = manager.watch(watch_pb2.WatchRequest(pool="world", kinds=tables, after=position), lambda: None)
        assert at_once(again.poll()) == events[heard:]
        assert at_once(again.poll()) == []


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
