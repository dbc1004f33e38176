"""The gateway's tasks that run as long as it does."""

import asyncio

import pytest

from gateway.watching import watching


@pytest.mark.unit
async def test_a_watcher_that_fails_is_told_of_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def follows() -> None:
        raise ValueError("a defect")

    async def goes_on() -> None:
        await asyncio.Event().wait()

    failed, running = watching(follows()), watching(goes_on())
    await asyncio.wait((failed,))
    running.cancel()
    await asyncio.wait((running,))
    (record,) = caplog.records
    assert "a watcher failed" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a defect"
