"""Events that come together: a batch stands for its events, in their order and with their numbers."""

import pytest

from cli.tour.pool import POOL, TourPool
from cli.tour.scenes import SCENES
from kv_manager.core import watching
from kv_manager.core.journal import KINDS
from kv_manager.core.manager import MAX_BATCH_MS
from octavo.kv.v1 import watch_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit


def heard(pool: TourPool, batch_ms: int) -> tuple[watch_pb2.WatchRequest, "watching.Watch"]:
    """A watcher behind its snapshot."""
    request = watch_pb2.WatchRequest(pool=POOL, kinds=KINDS, batch_ms=batch_ms)
    watch = pool.manager.watch(request, lambda: None)
    assert [each for each in watch.poll() if each is not None][-1].snapshot.last
    return request, watch


@pytest.mark.parametrize("most_bytes", [1 << 20, 400, 1])
def test_a_batch_holds_what_single_events_say(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    """Two watchers of one pool, one asked for batches. Their size is looked at after every slice, here of one entry:
    an event, or all tables that one step lets grow. Every entry exceeds a byte."""
    monkeypatch.setattr(watching, "BATCH_BYTES", most_bytes)
    monkeypatch.setattr(watching, "SLICE_WEIGHT", 1)
    pool = TourPool()
    SCENES[0](pool)
    (_, single), (_, batched) = heard(pool, 0), heard(pool, 5)
    for play in SCENES[1:]:
        play(pool)
    alone = [each for each in single.poll() if each is not None]
    together = [each for each in batched.poll() if each is not None]
    assert not [each for each in alone if each.HasField("batch")]
    unpacked: list[watch_pb2.WatchResponse] = []
    for response in together:
        events = list(response.batch.events) or [response]
        assert (response.sequence, response.header) == (events[-1].sequence, events[-1].header)
        assert len(events) > 1 or not response.HasField("batch")
        unpacked += events
    assert unpacked == alone
    assert len(alone) > 40
    assert (len(together) == 1) == (most_bytes == 1 << 20)
    if most_bytes == 1:
        assert all(table.HasField("table") for each in together for table in each.batch.events)
        assert len(together) > len(alone) / 2


def test_a_pool_that_goes_is_told_behind_the_last_batch() -> None:
    pool = TourPool()
    SCENES[0](pool)
    _, watch = heard(pool, 5)
    SCENES[1](pool)
    SCENES[0](pool)  # attaches anew
    batch, gone = [each for each in watch.poll() if each is not None]
    assert batch.HasField("batch")
    assert gone.HasField("pool_dropped")
    assert gone.sequence == batch.sequence + 1
    assert watch.ended


def test_how_long_events_are_held_has_a_bound() -> None:
    pool = TourPool()
    SCENES[0](pool)
    with pytest.raises(ServiceError) as refused:
        pool.manager.watch(watch_pb2.WatchRequest(pool=POOL, batch_ms=MAX_BATCH_MS + 1), lambda: None)
    assert refused.value.reason == "OUT_OF_RANGE"
