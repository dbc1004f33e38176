"""What `octavo replay` says of a recording of the page: events have to lead to every account of the manager."""

import io
from collections.abc import Callable
from typing import Any

import inspector_records
import pytest

from cli.tour.scenes import SCENES
from cli.web_record import Replay
from gateway.inspector import frames
from kv_manager.recording import read_records

pytestmark = pytest.mark.unit

Recorder = Callable[..., Any]


def told(tape: Any) -> Replay:
    """Behind the header, everything."""
    replay = Replay()
    replay.tell(read_records(io.BytesIO(tape.record)))
    return replay


def test_every_account_of_a_whole_recording_is_compared(recorder: Recorder) -> None:
    """One per scene but the first, which attaches the pool, and the one that the snapshot begins with."""
    replay = told(recorder(SCENES))
    assert replay.problems == []
    assert replay.compared == len(SCENES) - 1
    assert replay.late == 0


def test_an_account_that_events_do_not_lead_to_is_told(recorder: Recorder) -> None:
    """It is one block off, and events of later steps follow it."""
    tape = recorder(SCENES[:4])
    lying = inspector_records.look(tape.pool)
    lying.summary.stats.free_blocks += 1
    tape.frames.append(frames.looked(lying))
    SCENES[4](tape.pool)
    tape.hear()
    replay = told(tape)
    assert len(replay.problems) == 1
    assert replay.problems[0].startswith(f"step {lying.summary.header.step}: free blocks are ")


def test_an_account_ahead_of_its_events_at_the_end_is_no_fault(recorder: Recorder) -> None:
    """A recording ends anywhere: the batch that the last account counts on may come after it."""
    tape = recorder(SCENES[:4])
    before = told(tape)
    SCENES[4](tape.pool)
    tape.look()
    replay = told(tape)
    assert replay.problems == []
    assert (replay.compared, replay.late) == (before.compared, 1)
