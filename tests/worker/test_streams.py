"""Streams between the engine's thread and the callers: a slow reader holds its own tokens, once, and nobody else's."""

import asyncio

import pytest
from scheduler_loop import make_sequence

from model_worker.engine.batch import Ended
from model_worker.engine.progress import Progress
from model_worker.streams import StreamTable

pytestmark = pytest.mark.unit


async def test_a_slow_reader_takes_everything_at_its_next_read() -> None:
    table = StreamTable(asyncio.get_running_loop())
    slow, quick = (make_sequence([1, 2], max_tokens=1_000) for _ in range(2))
    streams = [table.open(slow), table.open(quick)]
    assert None not in streams
    for step in range(100):
        table.deliver([Progress(slow, (step,), None, step), Progress(quick, (step,), None, step)])
        assert [one.tokens for one in await streams[1].get()] == [(step,)]  # type: ignore[union-attr]
    taken = await streams[0].get()  # type: ignore[union-attr]
    assert [one.tokens for one in taken] == [(step,) for step in range(100)]
    # Nothing is kept of what was read.
    table.deliver([Progress(slow, (7,), Ended(slow), 100)])
    assert [one.tokens for one in await streams[0].get()] == [(7,)]  # type: ignore[union-attr]


async def test_what_comes_late_for_an_earlier_request_of_the_same_id_is_dropped() -> None:
    table = StreamTable(asyncio.get_running_loop())
    earlier, later = make_sequence([1], max_tokens=5, samples=2), make_sequence([1], max_tokens=5, samples=2)
    assert earlier.group is not None
    assert later.group is not None
    for member in later.group.members:
        member.request_id = earlier.request_id
    assert table.open(earlier) is not None
    assert table.open(later) is None
    table.close(earlier)
    stream = table.open(later)
    assert stream is not None
    table.deliver([Progress(one, (5,), None, 1) for one in earlier.group.members])
    table.deliver([Progress(one, (6,), None, 2) for one in later.group.members])
    assert [one.tokens for one in await stream.get()] == [(6,), (6,)]
    assert stream.samples == 2
