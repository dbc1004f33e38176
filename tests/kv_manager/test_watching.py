"""Watch from inside: snapshots read while steps go on, and the token ids an operator allowed.

A mirror knows only what a watcher hears. Whatever the manager does between two slices of a snapshot, mirror and pool
agree once the events behind it were heard.
"""

import random
import struct
from hashlib import sha256

import grpc
import pytest
from kv_world import World
from test_kv_worlds import REGIMES

from cli.embedded_manager import EmbeddedManager
from kv_manager.core import journal, snapshots, step_notes, views
from kv_manager.core.entries import EVENT_WEIGHT
from kv_manager.core.journal import KINDS
from kv_manager.core.manager import Manager
from kv_manager.core.slices import at_once
from kv_manager.settings import Settings
from octavo.kv.v1 import (
    attach_pb2,
    common_pb2,
    inspect_pb2,
    kv_manager_pb2,
    kv_manager_pb2_grpc,
    steps_pb2,
    watch_pb2,
)

pytestmark = pytest.mark.property

CHOSEN = ("everything", "everything, samples", "window, beams", "failed steps, drafts", "beams, fenced")


class Mirror:
    """What somebody knows who only watches."""

    def __init__(self, manager, kinds, **fields):
        request = watch_pb2.WatchRequest(pool="world", kinds=kinds, **fields)
        self.watch = manager.watch(request, lambda: None)
        self.digests, self.blocks, self.tables, self.stored = set(), {}, {}, []
        self.inside = self.next_sequence = None
        self.work = self.watch.poll()

    def read(self, slices):
        """Hear at most so many slices."""
        for _ in range(slices):
            try:
                self.hear(next(self.work))
            except StopIteration:
                self.work = self.watch.poll()
                return

    def read_all(self):
        """Hear everything: what is being read, then what a new look finds, until that is nothing."""
        found = True
        while found:
            for response in self.work:
                self.hear(response)
            self.work = self.watch.poll()
            found = next(self.work, None)
            self.hear(found)
        return self

    def hear(self, response):
        if response is None:
            return
        event = getattr(response, kind := response.WhichOneof("event"))
        self.check_number(response)
        if kind == "snapshot":
            self.digests.update(event.digests)
            self.blocks.update((info.block, info) for info in event.blocks)
        elif kind == "stored":
            self.stored.append(event)
            self.digests.update(event.digests)
        elif kind == "removed":
            self.digests.difference_update(event.digests)
        elif kind == "cleared":
            self.digests.clear()
        elif kind == "blocks":
            self.blocks.update((info.block, info) for info in event.blocks)
        elif kind == "table":
            table = self.tables.setdefault(event.seq, [])
            assert event.first_index <= len(table), "an event about entries that were never told"
            table[event.first_index :] = event.blocks

    def check_number(self, response):
        """The strict check for gaps that watch.proto describes."""
        piece = response.WhichOneof("event") == "snapshot"
        if self.inside is not None:
            assert response.sequence == self.inside
        elif piece:
            self.inside = response.sequence
            for known in (self.digests, self.blocks, self.tables):
                known.clear()
        else:
            assert response.sequence == self.next_sequence
        if piece and response.snapshot.last:
            self.inside = None
        if self.inside is None:
            self.next_sequence = response.sequence + 1

    def agrees_on_digests(self, pool):
        blocks = pool.blocks
        assert self.digests == {each for each in blocks.index.digests() if blocks.first_confirmed_holder(each)}

    def agrees_on_tables(self, pool):
        tables = {seq: each.table for seq, each in pool.sequences.items() if each.table}
        assert {seq: table for seq, table in self.tables.items() if table} == tables

    def agrees(self, pool):
        blocks = pool.blocks
        self.agrees_on_digests(pool)
        self.agrees_on_tables(pool)
        for info in at_once(views.blocks_in_slices(pool, range(1, blocks.num_blocks + 1))):
            told = self.blocks.get(info.block)
            if told is None:
                assert info.state == inspect_pb2.BLOCK_STATE_FREE
            else:
                # A fence of a referenced block passes without an event.
                assert (told.state, told.ref_count, told.digest, list(told.owners)) == (
                    info.state,
                    info.ref_count,
                    info.digest,
                    list(info.owners),
                )


@pytest.fixture
def tiny_slices(monkeypatch):
    """Every digest, every block and every pair of table entries in a slice of its own."""
    for name in ("SLICE_LOOKS", "SLICE_BLOCKS", "PIECE_DIGESTS", "PIECE_BLOCKS"):
        monkeypatch.setattr(snapshots, name, 1)
    monkeypatch.setattr(snapshots, "PIECE_TABLE", 2)
    monkeypatch.setattr(views, "OWNERS_SLICE", 1)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_snapshot_read_between_steps_ends_with_the_truth(tiny_slices, name):
    """Between two steps 0 to 8 slices are read; the pools have 6 to 12 blocks, so a snapshot takes several steps."""
    stretched = 0
    for seed in range(12):
        dice, manager, mirrors = random.Random(seed), Manager(), []

        def attach(spec, live, manager=manager):
            parts = [attach_pb2.AttachRequest(pool=spec)]
            parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
            return manager.attach(parts).header.epoch

        def answer(request, manager=manager, dice=dice, mirrors=mirrors):
            nonlocal stretched
            response = manager.step(request)
            for mirror in mirrors:
                stretched += mirror.next_sequence is None
                mirror.read(dice.randrange(9))
            return response

        world = World(REGIMES[name], random.Random(seed), attach, answer)
        while not world.finished:
            world.tick()
            if dice.random() < 0.2:
                mirrors.append(Mirror(manager, KINDS))
        for mirror in mirrors:
            mirror.read_all()
            if not mirror.watch.ended:
                mirror.agrees(manager.pools()[0])
    assert stretched > 50  # steps that fell into a snapshot


def test_a_cleared_cache_is_gone_from_a_snapshot_too(tiny_slices):
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=64, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    admit = steps_pb2.Admit(seq=1, token_ids=struct.pack("<40I", *range(40)), num_tokens=40)
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=[admit]))
    release = [steps_pb2.Release(seq=1)]
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=2, completed_step=1, releases=release))
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=3, completed_step=2))
    mirror = Mirror(manager, KINDS)
    while not mirror.digests:
        mirror.read(1)
    manager.reset_prefix_cache(kv_manager_pb2.ResetPrefixCacheRequest(pool="world"))
    mirror.read_all()
    assert mirror.digests == set()
    mirror.agrees(manager.pools()[0])


def test_a_pool_dropped_in_the_middle_of_a_snapshot_is_told(tiny_slices):
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=8, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    admit = steps_pb2.Admit(seq=1, token_ids=bytes(20), num_tokens=5)
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=[admit]))
    watch = manager.watch(watch_pb2.WatchRequest(pool="world", kinds=KINDS), lambda: None)
    work = watch.poll()
    next(work)
    manager.detach(attach_pb2.DetachRequest(pool="world", epoch=epoch))
    assert not watch.ended
    *_, last = work
    assert last.WhichOneof("event") == "pool_dropped"
    assert watch.ended


@pytest.mark.parametrize(("bound", "most"), [("REMEMBERED_EVENTS", 4), ("REMEMBERED_WEIGHT", 4 * (EVENT_WEIGHT + 1))])
@pytest.mark.parametrize("events", [3, 5])
def test_who_reads_too_slowly_hears_a_snapshot_instead_of_a_gap(monkeypatch, events, bound, most):
    """Four events are remembered, of one digest each. Three unread ones are told one by one; of five, one is lost, so a
    snapshot comes."""
    monkeypatch.setattr(journal, bound, most)
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=64, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    mirror = Mirror(manager, [watch_pb2.EVENT_KIND_CACHE]).read_all()
    start = mirror.next_sequence
    for step in range(1, events + 2):  # one digest is stored by each step but the first
        request = steps_pb2.StepRequest(pool="world", epoch=epoch, step=step, completed_step=step - 1)
        request.admits.add(seq=step, token_ids=struct.pack("<2I", step, 0), num_tokens=1)
        manager.step(request)
    mirror.read_all()
    mirror.agrees_on_digests(manager.pools()[0])
    assert len(mirror.stored) == (events if events <= 4 else 0)
    assert mirror.next_sequence == start + events


@pytest.mark.parametrize(("away", "hears"), [(4, "stored"), (5, "snapshot")])
def test_who_comes_back_hears_what_is_remembered_however_long_he_watched_before(monkeypatch, away, hears):
    """Four events are remembered. Six are watched, so that no older one is left; of those told to nobody the first one
    is forgotten with the fifth, and then nothing is noted any more."""
    monkeypatch.setattr(journal, "REMEMBERED_EVENTS", 4)
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=64, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    kinds = [watch_pb2.EVENT_KIND_CACHE]

    def store(first, last):
        for step in range(first, last + 1):
            request = steps_pb2.StepRequest(pool="world", epoch=epoch, step=step, completed_step=step - 1)
            request.admits.add(seq=step, token_ids=struct.pack("<2I", step, 0), num_tokens=1)
            manager.step(request)
            step_notes.settle(manager.pools()[0], manager.pools()[0].journal)  # as anybody's look at the pool does

    mirror = Mirror(manager, kinds).read_all()
    store(1, 7)  # each step but the first stores a digest
    mirror.read_all()
    mirror.watch.close()
    store(8, 7 + away)
    after = watch_pb2.WatchPosition(
        manager_id=manager.manager_id, epoch=epoch, sequence=mirror.next_sequence - 1, kinds=kinds
    )
    watch = manager.watch(watch_pb2.WatchRequest(pool="world", kinds=kinds, after=after), lambda: None)
    assert [each.WhichOneof("event") for each in at_once(watch.poll())][:1] == [hears]
    store(8 + away, 8 + away)
    assert [each.WhichOneof("event") for each in at_once(watch.poll())] == ["stored"]


def test_who_lost_events_of_tables_hears_a_snapshot_that_begins_as_one(monkeypatch, tiny_slices):
    """Two events are remembered, three tables come unheard and two go. The last one goes after the first slice of the
    snapshot, and no digest may be told yet: what would come first is a table."""
    monkeypatch.setattr(journal, "REMEMBERED_EVENTS", 2)
    manager = Manager()
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=64, block_size=1, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    mirror = Mirror(manager, [watch_pb2.EVENT_KIND_CACHE, watch_pb2.EVENT_KIND_TABLES]).read_all()
    admits = [steps_pb2.Admit(seq=seq, token_ids=bytes(12), num_tokens=3) for seq in (1, 2, 3)]
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=admits))
    releases = [[steps_pb2.Release(seq=seq) for seq in gone] for gone in ((1, 2), (3,))]
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=2, releases=releases[0]))
    mirror.read(1)  # the end of what was heard before
    mirror.read(1)
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=3, releases=releases[1]))
    mirror.read_all().agrees_on_tables(manager.pools()[0])


# --- token ids


def life(regime, seed, manager, watchers):
    def attach(spec, live):
        parts = [attach_pb2.AttachRequest(pool=spec)]
        parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[each])) for each in live]
        epoch = manager.attach(parts).header.epoch
        watchers.append(Mirror(manager, KINDS, include_token_ids=True).read_all())
        return epoch

    world = World(regime, random.Random(seed), attach, manager.step)
    while not world.finished:
        world.tick()
        watchers[-1].read_all()
    world.finish()
    watchers[-1].read_all()


@pytest.mark.parametrize("name", [*CHOSEN, "everything, restarts, failed steps", "late hits, fenced, two in flight"])
def test_stored_digests_come_with_their_ids_when_allowed(name):
    """The ids hash to the digests; a watcher from the first step on gets them for every digest there is."""
    regime, size, stored = REGIMES[name], 4 * REGIMES[name].block_size, 0
    for seed in range(10):
        watchers = []
        life(regime, seed, Manager(watch_token_ids=True), watchers)
        for event in (event for watcher in watchers for event in watcher.stored):
            parent = event.parent
            assert len(event.token_ids) == size * len(event.digests)
            for index, digest in enumerate(event.digests):
                assert sha256(parent + event.token_ids[index * size : (index + 1) * size]).digest() == digest
                parent = digest
            stored += len(event.digests)
    assert stored > 50


@pytest.mark.parametrize(("allowed", "asks"), [(False, True), (True, False), (False, False)])
def test_no_ids_without_the_operator_or_without_asking(allowed, asks):
    manager = Manager(watch_token_ids=allowed)
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=8, block_size=2)
    spec.reuse_regime = common_pb2.REUSE_REGIME_ORDERED
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    mirror = Mirror(manager, [watch_pb2.EVENT_KIND_CACHE], include_token_ids=asks).read_all()
    admit = steps_pb2.Admit(seq=1, token_ids=bytes(20), num_tokens=5)
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=[admit]))
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=2, completed_step=1))
    mirror.read_all()
    assert [(len(event.digests), event.token_ids) for event in mirror.stored] == [(2, b"")]


def test_who_does_not_ask_takes_no_ids_from_who_does():
    """One message serves all watchers; each of them hears of it what it asked for."""
    manager = Manager(watch_token_ids=True)
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=8, block_size=2, reuse_regime=1)
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    cache = [watch_pb2.EVENT_KIND_CACHE]
    mirrors = [Mirror(manager, cache, include_token_ids=asks).read_all() for asks in (False, True, False)]
    admit = steps_pb2.Admit(seq=1, token_ids=bytes(range(20)), num_tokens=5)
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=[admit]))
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=2, completed_step=1))
    told = [mirror.read_all().stored[0].token_ids for mirror in mirrors]
    assert told == [b"", bytes(range(16)), b""]  # two blocks of two ids, four bytes each


def test_ids_that_nobody_knows_any_more_are_left_out():
    """Filled and ended before anybody watched: the event says which digests, and no ids."""
    manager = Manager(watch_token_ids=True)
    spec = attach_pb2.PoolSpec(pool="world", worker_id="w", num_blocks=8, block_size=2)
    spec.reuse_regime = common_pb2.REUSE_REGIME_ORDERED
    epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    admits = [steps_pb2.Admit(seq=seq, token_ids=bytes([seq] * 20), num_tokens=5) for seq in (1, 2)]
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=1, admits=admits))
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=2, releases=[steps_pb2.Release(seq=1)]))
    mirror = Mirror(manager, [watch_pb2.EVENT_KIND_CACHE], include_token_ids=True).read_all()
    manager.step(steps_pb2.StepRequest(pool="world", epoch=epoch, step=3, completed_step=2))
    mirror.read_all()
    assert [(len(event.digests), event.token_ids) for event in mirror.stored] == [(2, b""), (2, bytes([2] * 16))]


# --- over gRPC


@pytest.mark.e2e
@pytest.mark.parametrize(("flags", "ids"), [((), b""), (("--watch-token-ids", "true"), struct.pack("<4I", 5, 6, 7, 8))])
def test_an_operator_allows_token_ids_by_a_flag(run_manager, flags, ids):
    with run_manager("--metrics", "", *flags) as manager:
        stub = manager.stub
        spec = attach_pb2.PoolSpec(pool="pool", worker_id="w", num_blocks=8, block_size=4, reuse_regime=1)
        epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
        watch = stub.Watch(watch_pb2.WatchRequest(pool="pool", include_token_ids=True))
        assert next(watch).snapshot.last
        admit = steps_pb2.Admit(seq=1, token_ids=struct.pack("<5I", 5, 6, 7, 8, 9), num_tokens=5)
        stub.Step(steps_pb2.StepRequest(pool="pool", epoch=epoch, step=1, admits=[admit]))
        stub.Step(steps_pb2.StepRequest(pool="pool", epoch=epoch, step=2, completed_step=1))
        assert next(watch).stored.token_ids == ids
        watch.cancel()


@pytest.mark.e2e
def test_a_manager_called_from_another_thread_is_watched_over_grpc():
    """As ``octavo serve --in-process``: the engine's thread calls the core, watchers hear of it through the loop's."""
    with EmbeddedManager(Settings(listen="127.0.0.1:0", metrics="")) as embedded:
        spec = attach_pb2.PoolSpec(pool="pool", worker_id="w", num_blocks=8, block_size=1, reuse_regime=1)
        epoch = embedded.manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
        with grpc.insecure_channel(embedded.address) as channel:
            watch = kv_manager_pb2_grpc.KvManagerServiceStub(channel).Watch(watch_pb2.WatchRequest(pool="pool"))
            assert next(watch).snapshot.last
            for step in range(1, 20):
                request = steps_pb2.StepRequest(pool="pool", epoch=epoch, step=step, completed_step=step - 1)
                request.admits.add(seq=step, token_ids=struct.pack("<2I", step, 0), num_tokens=2)
                if step > 1:
                    request.releases.add(seq=step - 1)
                embedded.manager.step(request)
                # One by one: each answer is waited for, so the loop sleeps when the next step is served.
                if step > 1:
                    assert next(event for event in watch if event.HasField("stored")).header.step == step
            watch.cancel()
