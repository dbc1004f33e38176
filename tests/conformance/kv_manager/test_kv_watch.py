"""Watch: what happens to a pool, in order, without silent gaps."""

import itertools

import grpc
import pytest
from kv_fake_worker import admit, fresh, pack

from octavo.kv.v1 import common_pb2, inspect_pb2, lookup_pb2, watch_pb2

pytestmark = pytest.mark.needs("WATCH")

CACHE, BLOCKS = watch_pb2.EVENT_KIND_CACHE, watch_pb2.EVENT_KIND_BLOCKS
TABLES, SEQUENCES = watch_pb2.EVENT_KIND_TABLES, watch_pb2.EVENT_KIND_SEQUENCES


class Watching:
    """A watch whose snapshot has been read."""

    def __init__(self, worker, kinds=(), after=None):
        self.kinds = kinds or [CACHE]
        self.call = worker.stub.Watch(watch_pb2.WatchRequest(pool=worker.pool, kinds=kinds, after=after), timeout=60)
        self.snapshot = [] if after is not None else self.read_snapshot()

    def read_snapshot(self):
        pieces = []
        while not pieces or not pieces[-1].snapshot.last:
            pieces.append(next(self.call))
        self.last = pieces[-1]
        return pieces

    def next(self, count=1):
        events = list(itertools.islice(self.call, count))
        self.last = events[-1]
        return events

    @property
    def position(self):
        header = self.last.header
        return watch_pb2.WatchPosition(
            manager_id=header.manager_id, epoch=header.epoch, sequence=self.last.sequence, kinds=self.kinds
        )


@pytest.fixture
def watching():
    watches = []

    def make(*arguments, **options):
        watches.append(Watching(*arguments, **options))
        return watches[-1]

    yield make
    for watch in watches:
        watch.call.cancel()


def chain(worker, ids):
    """The digests of a prompt, asked of the manager itself."""
    request = lookup_pb2.MatchPrefixRequest(
        pools=[worker.pool], token_ids=pack(ids), root=common_pb2.PrefixRoot(), include_digests=True
    )
    return list(worker.stub.MatchPrefix(request).matches[0].digests)


@pytest.mark.scenario("event-01-store-remove-clear")
def test_digests_are_stored_removed_and_cleared(attach, watching):
    """Ours: three blocks, since a prompt needs room for one token more than it has."""
    worker = attach(num_blocks=3, block_size=16)
    watch = watching(worker)
    first, second = fresh(32, 1), fresh(32, 1000)
    worker.admit(1, first)
    worker.step(releases=[1])  # step 1 has completed: everyone may hit its digests
    stored = watch.next()[0].stored
    assert list(stored.digests) == chain(worker, first)
    worker.admit(2, second)  # the block never used, then the tail of the first prompt
    assert [list(event.removed.digests) for event in watch.next()] == [[chain(worker, first)[1]]]
    worker.step(releases=[2])
    assert list(watch.next()[0].stored.digests) == chain(worker, second)
    worker.step()
    worker.reset()
    assert watch.next()[0].WhichOneof("event") == "cleared"
    assert worker.matched(first) == worker.matched(second) == 0


@pytest.mark.scenario("event-02-incremental-parent")
def test_a_block_filled_later_names_its_parent(attach, watching):
    worker = attach(num_blocks=8)
    watch = watching(worker)
    nine = fresh(9, 1)
    worker.admit(1, nine)
    worker.step(commits={1: (9, [50, 51, 52])})
    two = watch.next()[0].stored
    worker.step()
    one = watch.next()[0].stored
    digests = chain(worker, [*nine, 50, 51, 52])
    assert list(two.digests) == digests[:2]
    assert (one.parent, list(one.digests)) == (digests[1], digests[2:])
    other = attach(num_blocks=8)
    assert two.parent not in (b"", *digests)  # the root's digest
    assert other.pool != worker.pool


@pytest.mark.scenario("nano-01-not-before-computed", "B08")
def test_nothing_is_stored_before_its_step_has_completed(attach, watching):
    worker = attach(num_blocks=8)
    watch = watching(worker)
    worker.admit(1, fresh(4, 1))
    worker.step(completed=0)
    worker.step(completed=1)
    event = watch.next()[0]
    assert event.header.step == 3
    assert list(event.stored.digests) == chain(worker, fresh(4, 1))


def test_a_copy_that_stays_keeps_its_digest_known(attach, watching):
    """Two blocks hold one digest; it is removed with the last of them, once."""
    worker = attach(num_blocks=3)
    four = fresh(4, 1)
    watch = watching(worker)
    worker.step(admits=[admit(1, four[:3]), admit(2, four[:3])])
    worker.step(commits={1: (3, four[3:]), 2: (3, four[3:])})
    worker.step(releases=[1, 2])
    assert [event.WhichOneof("event") for event in watch.next()] == ["stored"]
    worker.admit(3, fresh(7, 100))
    assert worker.matched([*four, 9]) == 4  # block 3, and one of the two copies
    worker.step(advances={3: 9})
    stored, removed = watch.next(2)  # of the third prompt, then the last copy goes
    assert list(stored.stored.digests) == chain(worker, fresh(7, 100))
    assert list(removed.removed.digests) == chain(worker, four)


def test_a_snapshot_says_what_is_there_and_numbers_go_on(attach, watching):
    worker = attach(num_blocks=8)
    worker.admit(1, fresh(8, 1))
    worker.step()
    watch = watching(worker)
    digests = [digest for piece in watch.snapshot for digest in piece.snapshot.digests]
    assert sorted(digests) == sorted(chain(worker, fresh(8, 1)))
    start = watch.last.sequence
    for step in range(3):
        worker.admit(2 + step, fresh(4, 100 * (step + 1)))
    worker.step()
    assert [event.sequence for event in watch.next(3)] == [start + 1, start + 2, start + 3]


def test_a_watch_goes_on_where_it_broke_off(attach, watching):
    worker = attach(num_blocks=12)
    one = watching(worker)
    worker.admit(1, fresh(4, 100))
    worker.admit(2, fresh(4, 200))
    worker.admit(3, fresh(4, 300))
    worker.step()
    one.next()
    position = one.position
    rest = one.next(2)
    one.call.cancel()
    again = watching(worker, after=position)
    assert again.next(2) == rest


@pytest.mark.parametrize("wrong", ["manager_id", "epoch", "sequence"])
def test_a_place_that_is_unknown_gets_a_snapshot(attach, watching, wrong):
    worker = attach(num_blocks=8)
    worker.admit(1, fresh(4, 1))
    worker.step()
    position = watching(worker).position
    setattr(position, wrong, "another" if wrong == "manager_id" else getattr(position, wrong) + 1_000)
    again = watching(worker, after=position)
    assert list(again.read_snapshot()[0].snapshot.digests) == chain(worker, fresh(4, 1))


@pytest.mark.parametrize(("told", "asked"), [([SEQUENCES], [CACHE]), ([SEQUENCES], [CACHE, SEQUENCES]), ([], [CACHE])])
def test_a_place_of_other_kinds_gets_a_snapshot(attach, watching, told, asked):
    """Three sequences are heard of, each with one digest. Event 1 of sequences is no place among the digests."""
    worker = attach(num_blocks=12)
    one, other = watching(worker, kinds=[SEQUENCES]), watching(worker, kinds=[CACHE])
    for seq in (1, 2, 3):
        worker.admit(seq, fresh(4, 100 * seq))
    worker.step()
    one.next()
    other.next(3)
    position = one.position
    del position.kinds[:]
    position.kinds.extend(told)
    again = watching(worker, kinds=asked, after=position)
    digests = [digest for piece in again.read_snapshot() for digest in piece.snapshot.digests]
    assert len(digests) == 3


def test_a_place_of_the_same_kinds_in_another_order_is_gone_on_from(attach, watching):
    worker = attach(num_blocks=12)
    one = watching(worker, kinds=[CACHE, SEQUENCES])
    for seq in (1, 2):
        worker.admit(seq, fresh(4, 100 * seq))
    worker.step()
    one.next()
    position, rest = one.position, one.next(3)  # one of two admissions was heard; the other and two digests follow
    assert watching(worker, kinds=[SEQUENCES, CACHE], after=position).next(3) == rest


def test_a_dropped_pool_ends_the_watch(attach, watching):
    worker = attach(num_blocks=8)
    watch = watching(worker)
    worker.detach()
    events = list(watch.call)
    assert [event.WhichOneof("event") for event in events] == ["pool_dropped"]
    assert "gave it up" in events[0].pool_dropped.reason


def test_a_kind_that_does_not_exist_is_refused(attach, refused):
    worker = attach(num_blocks=8)
    for kind in (0, 99):
        with refused("INVALID_ARGUMENT", "UNSPECIFIED"):
            next(worker.stub.Watch(watch_pb2.WatchRequest(pool=worker.pool, kinds=[kind])))
    with refused("NOT_FOUND", "POOL_NOT_FOUND"):
        next(worker.stub.Watch(watch_pb2.WatchRequest(pool="nobody's")))


class Mirror:
    """What somebody knows who only watches."""

    def __init__(self, pieces):
        self.blocks, self.tables, self.digests, self.types = {}, {}, set(), []
        for piece in pieces:
            self.hear(piece)

    def hear(self, response):
        kind = response.WhichOneof("event")
        event = getattr(response, kind)
        if kind == "snapshot":
            self.digests.update(event.digests)
            self.blocks.update((info.block, info) for info in event.blocks)
        elif kind == "stored":
            self.digests.update(event.digests)
        elif kind == "removed":
            self.digests.difference_update(event.digests)
        elif kind == "blocks":
            self.blocks.update((info.block, info) for info in event.blocks)
        elif kind == "table":
            table = self.tables.setdefault(event.seq, [])
            table[event.first_index :] = event.blocks
        elif kind == "sequence_event":
            name = watch_pb2.SequenceEventType.Name(event.type).removeprefix("SEQUENCE_EVENT_TYPE_")
            self.types.append((event.summary.seq, name))


@pytest.mark.needs("WATCH", "HOST_TIER", "PREEMPTION")
def test_who_only_watches_knows_what_inspect_shows(attach, watching):
    """Forks, copies, a swap there and back, a release: the mirror and the pool must agree after all of it."""
    worker = attach(num_blocks=6, host_blocks=8, block_bytes=1)
    worker.admit(1, fresh(6, 1))
    worker.step()
    watch = watching(worker, kinds=[CACHE, BLOCKS, TABLES, SEQUENCES])
    mirror = Mirror(watch.snapshot)
    assert mirror.tables == {1: [1, 2]}
    worker.step(forks=[(1, [2], 6)])
    worker.step(advances={1: 7, 2: 7})
    worker.admit(3, fresh(8, 500), priority=-1)
    assert 3 in worker.tables
    response = worker.step(advances={3: 13})  # two more of one free: the group of 1 and 2 is parked
    assert {item.seq for item in response.preempted} == {1, 2}
    worker.step(releases=[3])
    worker.step(resumes={1: 7, 2: 7})
    assert set(worker.tables) == {1, 2}
    worker.step(commits={1: (6, [70, 71])})
    worker.step(releases=[2])
    last = worker.step().header.step
    worker.admit(4, fresh(1, 900))  # one event more, so that we know when everything before was heard
    for event in watch.call:
        mirror.hear(event)
        if event.header.step > last and event.WhichOneof("event") == "blocks":
            break
    assert {seq: table for seq, table in mirror.tables.items() if table} == worker.tables
    real = worker.blocks()
    for block, info in mirror.blocks.items():
        assert info == real[block], block
    assert {block for block, info in real.items() if info.state != inspect_pb2.BLOCK_STATE_FREE} - {0} <= set(
        mirror.blocks
    )
    assert [kind for seq, kind in mirror.types if seq == 2] == ["FORKED", "PREEMPTED", "RESUMED", "RELEASED"]
    assert [kind for seq, kind in mirror.types if seq == 3] == ["ADMITTED", "RELEASED"]


def test_a_watch_of_a_silent_pool_stays_open(attach, watching):
    worker = attach(num_blocks=8)
    watch = watching(worker)
    watch.call.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        next(watch.call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
