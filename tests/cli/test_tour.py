"""``octavo tour``: the story goes as it is told, whatever is told is so, and what is not so ends it."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from cli.tour.pool import NUM_BLOCKS, TourError, TourPool
from cli.tour.scene import Scene
from cli.tour.scenes import SCENES
from cli.tour.views import scene_view
from cli.tour.words import SCRIPTS
from octavo.kv.v1 import inspect_pb2, steps_pb2

pytestmark = pytest.mark.unit

ARCHITECTURE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")


def played(until: str = "") -> tuple[TourPool, dict[str, Scene]]:
    """The pool after the scene of this title, the last one by default, and all scenes so far by their titles."""
    pool, scenes = TourPool(), {}
    for play in SCENES:
        scene = play(pool)
        scenes[scene.title] = scene
        if scene.title == until:
            break
    return pool, scenes


def drawn(pool: TourPool, scene: Scene) -> str:
    output = io.StringIO()
    Console(file=output, width=100, highlight=False).print(scene_view(1, 1, scene, pool))
    return output.getvalue()


def test_the_story_is_the_same_every_time() -> None:
    (first_pool, first), (second_pool, second) = played(), played()
    assert first == second
    assert [drawn(first_pool, scene) for scene in first.values()] == [
        drawn(second_pool, scene) for scene in second.values()
    ]


def test_every_scene_cites_a_section_that_is_there() -> None:
    _, scenes = played()
    numbers = set(re.findall(r"^##+ (\d+(?:\.\d+)?)\.? ", ARCHITECTURE, flags=re.MULTILINE))
    assert {scene.rule for scene in scenes.values()} <= numbers
    assert len(scenes) == len(SCENES) == 15


def test_it_takes_about_two_minutes() -> None:
    _, scenes = played()
    assert 90 < sum(scene.seconds for scene in scenes.values()) < 150


def test_both_ways_of_preemption_are_shown_with_their_costs() -> None:
    """Two rates, two answers: C's swap of 4 blocks at 20 GB/s beats recomputing, F's at 1 GB/s does not."""
    pool, scenes = played()
    (swap, recompute) = [record.preempted for record in pool.look().recent_preemptions]
    assert (swap.mode, recompute.mode) == (steps_pb2.PREEMPTION_MODE_SWAP, steps_pb2.PREEMPTION_MODE_RECOMPUTE)
    assert swap.swap_seconds == pytest.approx(2 * 4 * 2 * 2**20 / 20e9)
    assert recompute.swap_seconds == pytest.approx(2 * 3 * 2 * 2**20 / 1e9)
    for record, title in ((swap, "Preempt, by swapping out"), (recompute, "Preempt, by forgetting")):
        told = " ".join(scenes[title].told)
        assert f"{record.recompute_seconds * 1000:.1f} ms" in told
        assert f"{record.swap_seconds * 1000:.1f} ms" in told


def test_what_is_drawn_is_what_the_manager_says() -> None:
    """After the copy: A and B share two blocks, each has a third, and the picture's rows are the manager's blocks."""
    pool, scenes = played("Copy on write")
    text = drawn(pool, scenes["Copy on write"])
    rows = [line.split() for line in text.splitlines() if re.match(r"\d +\S", line)]
    assert [int(row[0]) for row in rows] == list(range(1, NUM_BLOCKS + 1))
    for row, info in zip(rows, pool.blocks(), strict=True):
        owners = [pool.letter(owner) for owner in info.owners]
        assert row[-len(owners) - 1 :] == [str(info.ref_count), *owners]
    assert [pool.table(letter)[:2] for letter in "AB"] == [[1, 2], [1, 2]]
    assert pool.table("A")[2] != pool.table("B")[2]


def test_the_end_adds_up() -> None:
    pool, scenes = played()
    summary = pool.look().summary
    assert summary.stats.free_blocks + summary.stats.cached_blocks == NUM_BLOCKS
    told = " ".join(scenes["The end"].told)
    assert f"{summary.totals.hit_tokens} of {summary.totals.lookup_tokens} prompt tokens" in told
    # A, C, D and F were admitted for the first time: their prompts were looked up. E never was.
    assert summary.totals.lookup_tokens == sum(SCRIPTS[letter].prompt for letter in "ACDF")


def test_a_word_in_a_wrong_place_ends_the_tour() -> None:
    pool, _ = played("Share a prefix")
    block = pool.table("C")[0]
    pool.device[block][1] = "dog"
    with pytest.raises(TourError, match=r"reads .*dog"):
        pool.ask(steps_pb2.StepRequest())


def test_a_broken_invariant_ends_the_tour() -> None:
    pool, _ = played("Share a prefix")
    (core,) = pool.manager.pools()
    core.blocks.ref_count[pool.table("C")[0]] += 1
    with pytest.raises(TourError):
        pool.ask(steps_pb2.StepRequest())


def test_slots_hold_what_was_written_and_nothing_else() -> None:
    """Every running sequence's words lie in its blocks up to its length, and dots behind, at every scene."""
    pool = TourPool()
    for play in SCENES:
        play(pool)
        for summary in pool.look().sequences:
            if summary.state == inspect_pb2.SEQUENCE_STATE_RUNNING:
                speaker = pool.speakers[pool.letter(summary.seq)]
                slots = [word for block in pool.table(speaker.letter) for word in pool.device[block]]
                assert slots[: speaker.written] == list(speaker.words[: speaker.written])
                assert slots[speaker.written :] == [None] * (len(slots) - speaker.written)
