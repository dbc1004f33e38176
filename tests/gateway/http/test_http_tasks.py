"""What runs side by side in a response: sources, the client's connection, comments."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.http import sse
from gateway.http.body import ClientLeft
from gateway.http.fan_out import merged, while_connected
from gateway.http.sse import COMMENT, EventStream
from gateway.streams import Piece
from service.errors import ServiceError

pytestmark = pytest.mark.unit


class Source:
    """A generation that is told what to do; it knows how many pieces were taken and whether it was closed."""

    def __init__(self, *steps: str | Exception | asyncio.Event) -> None:
        self.taken = 0
        self.closed = False
        self.pieces = contextlib.aclosing(self._pieces(steps))

    async def _pieces(self, steps: tuple[str | Exception | asyncio.Event, ...]) -> AsyncGenerator[Piece, None]:
        try:
            for step in steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                    continue
                self.taken += 1
                yield Piece(0, step, (1,))
        finally:
            self.closed = True


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_sources_merge_each_in_its_order() -> None:
    sources = [Source(*"abc"), Source(*"xy"), Source()]
    parts = [part async for part in merged([source.pieces for source in sources], 2)]
    for prompt, text in enumerate(["abc", "xy", ""]):
        assert "".join(part.piece.text for part in parts if part.prompt == prompt) == text
    # Two answers per prompt: the first of prompt 1 is choice 2.
    assert {part.choice for part in parts} == {0, 2}
    assert all(source.closed for source in sources)


async def test_one_failure_ends_all_sources() -> None:
    never = asyncio.Event()
    waiting, failing = Source("a", never), Source("x", ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        async for _ in merged([waiting.pieces, failing.pieces], 1):
            pass
    assert waiting.closed


async def test_closing_closes_the_sources_and_a_slow_reader_holds_them_back() -> None:
    sources = [Source(*"abcdefgh"), Source(*"stuvwxyz")]
    async with contextlib.aclosing(merged([source.pieces for source in sources], 1)) as parts:
        await anext(parts)
        await settle()
        # One taken here, one in the queue, and one in the hand of each pump.
        assert sum(source.taken for source in sources) == 4
    assert all(source.closed for source in sources)


async def receive_nothing() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def running_forever(ended: list[str]) -> Any:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    return work()


async def test_work_ends_when_the_client_leaves() -> None:
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    ended: list[str] = []
    task = asyncio.create_task(while_connected(receive, running_forever(ended), asyncio.Future()))
    await settle()
    assert not ended
    left.set()
    with pytest.raises(ClientLeft):
        await task
    assert ended == ["ended"]


async def test_work_ends_when_all_are_cut_off() -> None:
    ended: list[str] = []
    cut_off: asyncio.Future[None] = asyncio.Future()
    task = asyncio.create_task(while_connected(receive_nothing, running_forever(ended), cut_off))
    await settle()
    cut_off.set_result(None)
    with pytest.raises(ServiceError, match="shutting down"):
        await task
    assert ended == ["ended"]


async def test_results_and_errors_pass_through() -> None:
    async def give(value: int) -> int:
        return 10 // value

    assert await while_connected(receive_nothing, give(5), asyncio.Future()) == 2
    with pytest.raises(ZeroDivisionError):
        await while_connected(receive_nothing, give(0), asyncio.Future())


class Sent:
    """What a response sent; ``door`` holds writes back while it is closed, as a slow reader does."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.heads = 0
        self.changed = asyncio.Event()
        self.door = asyncio.Event()
        self.door.set()

    async def __call__(self, message: Any) -> None:
        await self.door.wait()
        if message["type"] == "http.response.start":
            self.heads += 1
        else:
            self.bodies.append(message["body"])
        self.changed.set()

    async def wait_for(self, count: int) -> None:
        while len(self.bodies) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 10)


async def test_silence_is_filled_with_comments_and_the_head_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEAD_SECONDS", 0.001)
    sent = Sent()
    events = EventStream(sent, keep_alive_seconds=0.001)
    async with events.kept_alive():
        assert not events.started
        await sent.wait_for(2)
        assert (sent.heads, sent.bodies[:2], events.started) == (1, [COMMENT, COMMENT], True)
        await events.write(b"data: 1\n\n")
    count = len(sent.bodies)
    await events.end()
    assert (sent.heads, sent.bodies[count - 1], sent.bodies[count:]) == (1, b"data: 1\n\n", [b""])


async def test_no_comment_overtakes_or_joins_a_write_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEAD_SECONDS", 0.001)
    sent = Sent()
    events = EventStream(sent, keep_alive_seconds=0.001)
    sent.door.clear()
    async with events.kept_alive():
        writing = asyncio.create_task(events.write(b"data: 1\n\n"))
        # Ten times the silence after which a comment would come.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(writing), 0.01)
        sent.door.set()
        await writing
    assert (sent.heads, sent.bodies[0]) == (1, b"data: 1\n\n")


async def test_a_head_waits_longer_where_a_refusal_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEAD_SECONDS", 0.001)
    sent, others = Sent(), Sent()
    events, other = EventStream(sent, keep_alive_seconds=0.001), EventStream(others, keep_alive_seconds=0.001)
    events.head_seconds = sse.COMPILE_SECONDS
    async with events.kept_alive(), other.kept_alive():
        await others.wait_for(3)
        assert (events.started, sent.bodies) == (False, [])
