"""The live view's mirror, kept by Watch alone, equals what the manager says when asked; and what is drawn of it."""

import io

import pytest
from rich.console import Console

from cli.live.mirror import FENCED, SHARED, Mirror
from cli.live.views import block_map, frame, host_map
from cli.tour.pool import POOL, TourPool
from cli.tour.scenes import SCENES
from kv_manager.core.slices import at_once
from kv_manager.core.watching import Watch
from octavo.kv.v1 import inspect_pb2, watch_pb2
from service.watched import PAGE_KINDS, Gap

pytestmark = pytest.mark.unit


def opened(pool: TourPool, after: watch_pb2.WatchPosition | None = None) -> Watch:
    return pool.manager.watch(watch_pb2.WatchRequest(pool=POOL, kinds=PAGE_KINDS, after=after), lambda: None)


def listen(pool: TourPool, watch: Watch, mirror: Mirror) -> list[watch_pb2.WatchResponse]:
    """Hears what there is to hear, and returns it."""
    heard = at_once(watch.poll())
    for response in heard:
        if mirror.begins(response):
            mirror.begin(pool.look())
        mirror.hear(response)
    return heard


def check_equal(pool: TourPool, mirror: Mirror) -> None:
    """The mirror against the answers of the Inspect calls."""
    pages, look = mirror.pages, pool.look()
    assert pages is not None
    stats = look.summary.stats
    free, cached, referenced, shared, fenced = pages.counts
    assert (free, cached, referenced + shared, fenced) == (
        *(stats.free_blocks, stats.cached_blocks, stats.referenced_blocks, stats.fenced_blocks),
    )
    assert [code == SHARED for code in pages.codes] == [info.ref_count > 1 for info in pool.blocks()]
    states = {summary.seq: summary.state for summary in look.sequences}
    assert {seq: summary.state for seq, summary in pages.sequences.items()} == states
    tables = {seq: pool.table(pool.letter(seq)) for seq in states}
    assert pages.tables == {seq: table for seq, table in tables.items() if table}
    assert pages.host_blocks() == stats.host_blocks - stats.host_free_blocks
    assert list(mirror.preemptions) == list(look.recent_preemptions)
    totals = look.summary.totals
    assert (mirror.lookup_tokens, mirror.hit_tokens) == (totals.lookup_tokens, totals.hit_tokens)


@pytest.fixture
def pool() -> TourPool:
    """The tour's pool, attached: its scenes are a worker that allocates, forks, copies, shares, waits, is preempted."""
    made = TourPool()
    SCENES[0](made)
    return made


@pytest.mark.parametrize("before", range(1, len(SCENES)))
def test_it_equals_the_manager_wherever_one_begins_to_watch(pool: TourPool, before: int) -> None:
    """``before`` scenes are in the snapshot, the others come as events."""
    for play in SCENES[1:before]:
        play(pool)
    watch, mirror = opened(pool), Mirror()
    snapshot = listen(pool, watch, mirror)
    assert snapshot[0].HasField("snapshot")
    check_equal(pool, mirror)
    for play in SCENES[before:]:
        play(pool)
        heard = listen(pool, watch, mirror)
        assert heard
        assert not any(response.HasField("snapshot") for response in heard)
        check_equal(pool, mirror)


def test_a_broken_stream_goes_on_where_it_was(pool: TourPool) -> None:
    watch, mirror = opened(pool), Mirror()
    assert mirror.position is None
    listen(pool, watch, mirror)
    for play in SCENES[1:5]:
        play(pool)
    listen(pool, watch, mirror)
    watch.close()
    for play in SCENES[5:11]:
        play(pool)
    again = opened(pool, mirror.position)
    heard = listen(pool, again, mirror)
    assert not any(response.HasField("snapshot") for response in heard)
    check_equal(pool, mirror)


def test_a_lost_event_is_noticed(pool: TourPool) -> None:
    watch, mirror = opened(pool), Mirror()
    listen(pool, watch, mirror)
    SCENES[1](pool)
    first, second, *_ = at_once(watch.poll())
    with pytest.raises(Gap):
        mirror.hear(second)
    assert first.sequence + 1 == second.sequence
    assert mirror.position is None  # only a snapshot helps
    listen(pool, opened(pool), mirror)
    check_equal(pool, mirror)


def test_what_was_counted_before_is_not_counted_again(pool: TourPool) -> None:
    """A step between the snapshot and the question about the pool is in the answer already."""
    watch, mirror = opened(pool), Mirror()
    snapshot = at_once(watch.poll())
    SCENES[1](pool)
    assert mirror.begins(snapshot[0])
    mirror.begin(pool.look())
    for response in snapshot:
        mirror.hear(response)
    listen(pool, watch, mirror)
    check_equal(pool, mirror)


def test_a_pool_that_is_gone_is_said(pool: TourPool) -> None:
    watch, mirror = opened(pool), Mirror()
    listen(pool, watch, mirror)
    SCENES[0](pool)
    listen(pool, watch, mirror)
    assert (mirror.pages, mirror.position) == (None, None)
    assert "the pool is gone: another Attach has taken its place" in drawn(mirror)


def drawn(mirror: Mirror, width: int = 100, height: int = 40) -> str:
    output = io.StringIO()
    Console(file=output, width=width, height=height, highlight=False).print(frame(mirror, width, height, False))
    return output.getvalue()


def test_a_frame_shows_counts_map_sequences_and_who_gave_way(pool: TourPool) -> None:
    for play in SCENES[1:10]:
        play(pool)
    mirror = Mirror()
    listen(pool, opened(pool), mirror)
    text = drawn(mirror)
    # Blocks 1 and 2 are shared by A and B, the other six are their own; C is parked in 4 of 6 host blocks.
    assert "       1  SSrrrrrr" in text
    assert "    host  hhhh.." in text
    assert "S shared 2" in text
    assert "h swapped 4" in text
    assert "2 running, 1 swapped; 15 of 24 prompt tokens hit" in text
    assert "last preemptions" in text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    # seq, state, blocks, shared, slots: A and B have two shared blocks and three of their own.
    assert [row[:5] for row in rows[:3]] == [
        ["1", "running", "5", "2", "20"],
        ["2", "running", "5", "2", "20"],
        ["3", "swapped", "4", "0", "16"],
    ]


@pytest.mark.parametrize(("width", "height"), [(40, 6), (80, 24), (100, 16), (200, 60)])
def test_a_frame_fits_its_terminal(pool: TourPool, width: int, height: int) -> None:
    for play in SCENES[1:10]:
        play(pool)
    mirror = Mirror()
    listen(pool, opened(pool), mirror)
    assert len(drawn(mirror, width, height).splitlines()) <= height


def test_a_large_pool_is_drawn_by_runs() -> None:
    """100,000 blocks on 90 x 20 letters: 56 blocks each, 56 x 90 a row; most of the first run is shared."""
    codes = bytearray(100_000)
    codes[:30] = bytes([SHARED]) * 30
    codes[-1] = FENCED
    lines = block_map(codes, 100, 20).plain.splitlines()
    assert lines[0] == "a letter is what most of 56 blocks are doing"
    assert lines[1] == "       1  S" + "." * 89
    assert len(lines) == 1 + 20
    assert sum(line[10:].count(letter) for line in lines[1:] for letter in ".S") == -(-100_000 // 56)


def test_a_host_tier_is_one_row() -> None:
    """1,000 host blocks on 90 letters: 12 each, 84 letters; 13 blocks take the second letter too."""
    assert host_map(13, 1_000, 100).plain == "    host  hh" + "." * 82
    assert host_map(0, 0, 100).plain == ""


def test_blocks_told_are_counted_once() -> None:
    mirror = Mirror()
    answer = inspect_pb2.InspectPoolResponse()
    answer.summary.spec.num_blocks = 3
    mirror.begin(answer)
    info = inspect_pb2.BlockInfo(block=2, state=inspect_pb2.BLOCK_STATE_REFERENCED, ref_count=1)
    for _ in range(2):
        mirror.hear(watch_pb2.WatchResponse(snapshot=watch_pb2.Snapshot(blocks=[info])))
    mirror.hear(watch_pb2.WatchResponse(snapshot=watch_pb2.Snapshot(last=True)))
    assert mirror.pages is not None
    assert mirror.pages.counts == [2, 0, 1, 0, 0]
