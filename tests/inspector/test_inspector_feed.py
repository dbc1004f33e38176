"""The feed behind the page: one Watch for all who look, snapshots for those who come later or read too slowly.

A real manager over gRPC, in this event loop; its worker is the tour, whose pool has 8 blocks.
"""

import asyncio
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest

from cli.live.mirror import Mirror
from cli.tour.pool import POOL, TourPool
from cli.tour.scenes import SCENES
from cli.web_record import Replay
from gateway.inspector import frames
from gateway.inspector.feed import Feed, Place
from gateway.inspector.hub import Hub
from gateway.inspector.pool_state import PoolState
from gateway.inspector.viewers import Viewer
from kv_manager.metrics import step_times
from kv_manager.recording import read_records
from kv_manager.servicer import KvManagerServicer
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc, record_pb2, watch_pb2
from service.errors import ServiceError
from service.serving import Server
from service.watched import PAGE_KINDS, Gap

SECONDS = 120.0


class CountingServicer(KvManagerServicer):
    """Counts who watches."""

    watches = 0

    async def Watch(self, request: watch_pb2.WatchRequest, context: Any) -> AsyncIterator[watch_pb2.WatchResponse]:
        self.watches += 1
        async for response in super().Watch(request, context):
            yield response


@pytest.fixture
async def served() -> AsyncIterator[tuple[TourPool, CountingServicer, str]]:
    """A pool, the servicer of its manager and the manager's address."""
    pool = TourPool()
    SCENES[0](pool)
    servicer = CountingServicer(pool.manager, step_times())
    server = Server(
        ["octavo.kv.v1.KvManagerService"],
        lambda target: kv_manager_pb2_grpc.add_KvManagerServiceServicer_to_server(servicer, target),
    )
    yield pool, servicer, await server.start("127.0.0.1:0")
    await server.stop(0)


class Reader:
    """Someone who looks: what came, folded."""

    def __init__(self, feed: Feed, viewer: Viewer | None = None) -> None:
        self.viewer = viewer or Viewer()
        self.stream = feed.frames(self.viewer)
        self.data = b""
        self.mirror = Mirror()

    async def until_step(self, step: int) -> None:
        """Read until an event of that step was told."""
        async with asyncio.timeout(SECONDS):
            while self.heard() < step:
                self.data += await anext(self.stream)

    async def some(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            for _ in range(count):
                self.data += await anext(self.stream)

    def records(self) -> list[record_pb2.Record]:
        return list(read_records(BytesIO(self.data)))

    def heard(self) -> int:
        """The step of the last event, where no snapshot is half told."""
        step, inside = 0, False
        for record in self.records() if self.data else ():
            if record.HasField("watched"):
                response = record.watched.response
                inside = not response.snapshot.last if response.HasField("snapshot") else inside
                step = response.header.step
        return 0 if inside else step


def problems_of(reader: Reader) -> list[str]:
    """What a replay of all that it read finds wrong."""
    told = Replay()
    told.tell(iter(reader.records()))
    return told.problems


@pytest.mark.e2e
async def test_all_who_look_share_one_watch_and_each_hears_everything(served: Any) -> None:
    pool, servicer, address = served
    hub = Hub((address,))
    feed = await hub.feed(Place(address, POOL))
    assert await hub.feed(Place(address, POOL)) is feed
    early = Reader(feed)
    SCENES[1](pool)
    await early.until_step(pool.step)
    for play in SCENES[2:6]:
        play(pool)
    await early.until_step(pool.step)
    late = Reader(feed)
    await late.some(4)  # a header, a look, the snapshot
    for play in SCENES[6:]:
        play(pool)
    for reader in (early, late):
        await reader.until_step(pool.step)
        assert problems_of(reader) == []
    assert servicer.watches == 1
    await hub.close()
    assert [frame async for frame in early.stream] == []  # it has ended
    with pytest.raises(ServiceError) as refused:
        await hub.feed(Place(address, POOL))
    assert refused.value.reason == "SHUTTING_DOWN"


@pytest.mark.e2e
async def test_one_who_reads_too_slowly_is_told_a_snapshot_instead(served: Any) -> None:
    """A queue of 600 bytes: an event of the tour takes 100 to 300, so several scenes do not fit."""
    pool, _, address = served
    hub = Hub((address,))
    feed = await hub.feed(Place(address, POOL))
    slow, other = Reader(feed, Viewer(600)), Reader(feed)
    SCENES[1](pool)
    for reader in (slow, other):
        await reader.until_step(pool.step)
    for play in SCENES[2:]:
        play(pool)
        await other.until_step(pool.step)
    assert slow.viewer.dropped > 0
    await slow.until_step(pool.step)
    assert sum(each.watched.response.snapshot.last for each in slow.records()) > 1
    assert problems_of(slow) == []
    assert other.viewer.dropped == 0
    await hub.close()


@pytest.mark.e2e
async def test_what_happens_while_a_snapshot_is_about_to_be_read_is_told_once(served: Any) -> None:
    """Someone reads a header and a look, and the snapshot only when later events wait behind it."""
    pool, _, address = served
    hub = Hub((address,))
    feed = await hub.feed(Place(address, POOL))
    other, late = Reader(feed), Reader(feed)
    SCENES[1](pool)
    await other.until_step(pool.step)
    await late.some(2)
    SCENES[2](pool)
    await other.until_step(pool.step)
    await late.until_step(pool.step)
    SCENES[3](pool)
    await late.until_step(pool.step)
    assert problems_of(late) == []
    await hub.close()


@pytest.mark.e2e
async def test_nobody_watches_when_nobody_looks_any_more(served: Any) -> None:
    pool, servicer, address = served
    hub = Hub((address,))
    for times in (1, 2):
        feed = await hub.feed(Place(address, POOL))
        reader = Reader(feed)
        await reader.some(3)
        assert servicer.watches == times
        await reader.stream.aclose()
        assert await hub.feed(Place(address, POOL)) is not feed
    await hub.close()
    assert pool.step == 0


@pytest.mark.e2e
async def test_a_feed_that_has_ended_does_not_begin_again(served: Any) -> None:
    """One who asked for it before its last viewer left has an empty stream, and comes back."""
    _, servicer, address = served
    hub = Hub((address,))
    feed = await hub.feed(Place(address, POOL))
    last, late = Reader(feed), Reader(feed)
    await last.some(3)
    await last.stream.aclose()
    assert [frame async for frame in late.stream] == []
    again = await hub.feed(Place(address, POOL))
    ended = []
    twice = Feed(again.place, hub.stub(address), ended.append)
    twice.end()
    twice.end()
    assert ended == [twice]
    assert servicer.watches == 1
    await hub.close()
    assert again.over


class Lossy:
    """A manager whose first Watch loses an event: after a snapshot with number 1 comes number 3."""

    def __init__(self) -> None:
        self.calls: list[LossyCall] = []

    async def InspectPool(
        self, request: inspect_pb2.InspectPoolRequest, timeout: float
    ) -> inspect_pb2.InspectPoolResponse:
        return inspect_pb2.InspectPoolResponse()

    def Watch(self, request: watch_pb2.WatchRequest) -> "LossyCall":
        self.calls.append(LossyCall(lost=not self.calls))
        return self.calls[-1]


class LossyCall:
    def __init__(self, lost: bool) -> None:
        self._lost = lost
        self.cancelled = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[watch_pb2.WatchResponse]:
        yield watch_pb2.WatchResponse(sequence=1, snapshot=watch_pb2.Snapshot(last=True))
        if self._lost:
            yield watch_pb2.WatchResponse(sequence=3, blocks=watch_pb2.BlocksChanged())
        await self.cancelled.wait()

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.mark.unit
async def test_after_a_lost_event_viewers_are_told_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.inspector.feed.SECONDS_BETWEEN_TRIES", 0.0)
    manager = Lossy()
    feed = Feed(Place("a:1", POOL), manager, lambda _: None)  # type: ignore[arg-type]
    await feed.look()
    reader = Reader(feed)
    async with asyncio.timeout(SECONDS):
        while len(manager.calls) < 2 or not reader.records()[-1].watched.response.snapshot.last:
            await reader.some(1)
    assert manager.calls[0].cancelled.is_set()
    await reader.stream.aclose()


@pytest.mark.e2e
async def test_who_asks_for_what_is_not_there_hears_so(served: Any) -> None:
    _, _, address = served
    hub = Hub((address, "127.0.0.1:1"))
    for place, reason in (
        (Place(address, "another"), "POOL_NOT_FOUND"),
        (Place("127.0.0.1:2", POOL), "UNKNOWN_MANAGER"),
        (Place("127.0.0.1:1", POOL), "MANAGER_UNREACHABLE"),
    ):
        with pytest.raises(ServiceError) as refused:
            await hub.feed(place)
        assert refused.value.reason == reason
        if reason == "POOL_NOT_FOUND":
            assert refused.value.message == f"KV manager {address} has no pool 'another': its pools are {POOL!r}"
    there, silent = await hub.pools()
    assert there == {"manager": address, "pool": POOL, "num_blocks": 8, "block_size": 4}
    assert silent["manager"] == "127.0.0.1:1"
    assert "127.0.0.1:1" in silent["trouble"]
    await hub.close()


@pytest.mark.unit
def test_a_missing_event_is_noticed(recorder: Any) -> None:
    tape = recorder(SCENES[:4])
    state = PoolState()
    events = [
        event
        for record in read_records(BytesIO(tape.record))
        if record.HasField("watched")
        for event in (record.watched.response.batch.events or [record.watched.response])
    ]
    for event in events[:-2]:
        state.hear(event)
    with pytest.raises(Gap):
        state.hear(events[-1])


@pytest.mark.unit
def test_salts_never_leave_the_gateway() -> None:
    summary = inspect_pb2.SequenceSummary(seq=1)
    summary.root.salt, summary.root.tenant = "secret", "tenant/acme"
    event = watch_pb2.WatchResponse(sequence_event=watch_pb2.SequenceEvent(summary=summary))
    batch = watch_pb2.WatchResponse(batch=watch_pb2.WatchBatch(events=[event, event]))
    whole = watch_pb2.WatchResponse(snapshot=watch_pb2.Snapshot(sequences=[summary]))
    told = [frames.watched(each) for each in (event, batch, whole)]
    told.append(frames.looked(inspect_pb2.InspectPoolResponse(sequences=[summary])))
    assert set(PAGE_KINDS) == set(watch_pb2.EventKind.values()) - {0, watch_pb2.EVENT_KIND_CACHE}
    for frame in told:
        assert b"secret" not in frame
        assert b"tenant/acme" in frame
