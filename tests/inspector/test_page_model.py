"""The page's own model, run by Node: told a record it knows what the manager says, and what it exports can be replayed.

The tour's pool: 8 blocks of 4 tokens and 6 host blocks, through sharing, forks, copies on write, preemptions of both
modes and swaps.
"""

import json
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.commands import app
from cli.tour.pool import NUM_BLOCKS, TourPool
from cli.tour.scenes import SCENES
from octavo.kv.v1 import inspect_pb2, steps_pb2

HERE = Path(__file__).resolve().parent
# Not among the quick checks: those ask for nothing but Python.
pytestmark = pytest.mark.e2e

FREE, CACHED, REFERENCED, SHARED, FENCED, NULL = range(6)
KINDS = {
    inspect_pb2.BLOCK_STATE_FREE: FREE,
    inspect_pb2.BLOCK_STATE_CACHED: CACHED,
    inspect_pb2.BLOCK_STATE_REFERENCED: REFERENCED,
    inspect_pb2.BLOCK_STATE_FENCED: FENCED,
}


def fold(record: bytes, folder: Path) -> Any:
    """What the page knows after a record; its export lies beside it."""
    (folder / "heard.record").write_bytes(record)
    page = resources.files("gateway.inspector") / "page"
    command = ["node", HERE / "fold_record.mjs", page, folder / "heard.record", folder / "exported.record"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expected(pool: TourPool) -> dict[str, Any]:
    """The same from the manager itself."""
    blocks, look = pool.blocks(), pool.look()
    kinds = [NULL, *(SHARED if info.ref_count > 1 else KINDS[info.state] for info in blocks)]
    tables = {str(each.seq): pool.table(pool.letter(each.seq)) for each in look.sequences}
    swapped = inspect_pb2.SEQUENCE_STATE_SWAPPED
    return {
        "kinds": kinds,
        "refs": [0, *(info.ref_count for info in blocks)],
        "counts": [kinds.count(kind) for kind in range(6)],
        "digests": ["", *(info.digest.hex() for info in blocks)],
        "owners": [[], *(sorted(info.owners) for info in blocks)],
        "tables": {seq: table for seq, table in tables.items() if table},
        "parked": [each.seq for each in look.sequences if each.state == swapped],
    }


@pytest.mark.parametrize("count", range(2, len(SCENES) + 1))
def test_after_every_scene_the_page_knows_what_the_manager_says(recorder: Any, tmp_path: Path, count: int) -> None:
    tape = recorder(SCENES[:count])
    known, wanted = fold(tape.record, tmp_path), expected(tape.pool)
    assert {name: known[name] for name in wanted} == wanted
    # The same again from the history, which goes on from a moment it kept.
    assert known["again"] == {name: known[name] for name in known["again"]}
    look = tape.pool.look()
    assert sorted(each["seq"] for each in known["sequences"]) == sorted(each.seq for each in look.sequences)
    usage = known["samples"][-1]
    assert usage["slots"] == NUM_BLOCKS * 4
    assert usage["tokens"] + usage["reserved"] + usage["internal"] == 4 * look.summary.stats.referenced_blocks
    assert usage["external"] == 4 * look.summary.stats.fenced_blocks


def test_what_happened_is_told_in_words(recorder: Any, tmp_path: Path) -> None:
    tape = recorder(SCENES)
    known = fold(tape.record, tmp_path)
    told = "\n".join(known["log"])
    assert "2 forked: it names its parent's blocks" in told
    assert ", which others rely on: copied to " in told
    assert " of them found in the cache" in told
    assert "3 swapped out, " in told
    assert "3 is back from the host tier" in told
    swap, recompute = known["preemptions"]
    requesters = [each.preempted.requester for each in tape.pool.look().recent_preemptions]
    assert [swap["who"], recompute["who"]] == [
        f"{seq} gave way to {requesters[index]}" for index, seq in enumerate((3, 6))
    ]
    assert swap["because"] == recompute["because"] == "the pool had no block left for it"
    assert (swap["outcome"], recompute["outcome"]) == ("swapped out", "forgotten, to be computed again")
    for explained in (swap, recompute):
        assert explained["prices"].count(" ms") == 2


def test_what_is_exported_can_be_replayed(recorder: Any, tmp_path: Path) -> None:
    """The recording made by the gateway, and the one that the page makes of its history, told again by the command."""
    tape = recorder(SCENES)
    fold(tape.record, tmp_path)
    for name in ("heard", "exported"):
        done = CliRunner().invoke(app, ["replay", str(tmp_path / f"{name}.record")])
        assert done.exit_code == 0, done.output
        assert ", 0 differ" in done.output
    # One account per scene but the first; the last ones wait for events that do not come, and are compared at the end.
    assert f" {len(SCENES) - 1} accounts of the manager compared, 0 differ" in done.output


def test_an_export_goes_on_from_the_middle_of_a_life(recorder: Any, tmp_path: Path) -> None:
    """The page begins to look when half of the tour is over: its first moment is a snapshot of a pool in use."""
    pool = TourPool()
    for play in SCENES[:6]:
        play(pool)
    tape = recorder(SCENES[6:], pool)
    known = fold(tape.record, tmp_path)
    assert {name: known[name] for name in expected(pool)} == expected(pool)
    done = CliRunner().invoke(app, ["replay", str(tmp_path / "exported.record")])
    assert done.exit_code == 0, done.output


def test_long_varints_and_negative_numbers_survive(tmp_path: Path) -> None:
    """Ids up to 2^53, a priority below zero, an infinite price: written by the page's writer, read by protobuf."""
    script = tmp_path / "write.mjs"
    page = resources.files("gateway.inspector") / "page"
    script.write_text(
        f"""
        import {{ Preempted, SequenceSummary }} from "{(Path(str(page)) / "messages.js").as_uri()}";
        const hex = (bytes) => Buffer.from(bytes).toString("hex");
        const summary = {{ seq: 2 ** 53 - 1, priority: -7, grantedTokens: 300, group: 128, arrival: 127 }};
        const preempted = {{ seq: 1, swapSeconds: Infinity, recomputeSeconds: 0.25 }};
        console.log(JSON.stringify([hex(SequenceSummary.encode(summary)), hex(Preempted.encode(preempted)),
          SequenceSummary.decode(SequenceSummary.encode(summary)).priority]));
        """
    )
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, check=True)
    summary_hex, preempted_hex, priority = json.loads(done.stdout)
    summary = inspect_pb2.SequenceSummary.FromString(bytes.fromhex(summary_hex))
    assert summary == inspect_pb2.SequenceSummary(
        seq=2**53 - 1, priority=-7, granted_tokens=300, group=128, arrival=127
    )
    assert priority == -7
    preempted = steps_pb2.Preempted.FromString(bytes.fromhex(preempted_hex))
    assert preempted == steps_pb2.Preempted(seq=1, swap_seconds=float("inf"), recompute_seconds=0.25)
