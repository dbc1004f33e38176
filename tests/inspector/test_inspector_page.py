"""The page in headless Chromium, before the three services with a model that takes its time.

The model writes "abc..." for ever, so a request ends where max_tokens says. Its MLP has 65,536 rows of 1,152 bytes, so
that a step reads 75 MB, for which no core takes less than a millisecond: a held request of 16,000 tokens lasts 16
seconds at least and minutes where the browser is slow too, while what is done with it takes a few. Two of them want
2,010 blocks of 16 tokens in the end.
"""

import http.client
import itertools
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import successor_model
from chromium import Chromium
from inspected_page import idle
from inspected_stack import Inspected, inspected_stack
from typer.testing import CliRunner

from cli.commands import app

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(900)]

NUM_BLOCKS = 2_048
INTERMEDIATE = 65_536
HELD_TOKENS = 16_000
SHARED = 3
# A letter or a space is a token.
PROMPT = "the pages of a cache are the blocks of a table, and a table is a list of them "


@pytest.fixture(scope="module")
def inspected() -> Iterator[Inspected]:
    with tempfile.TemporaryDirectory() as folder:
        model = successor_model.write(Path(folder), INTERMEDIATE)
        with inspected_stack(model, num_blocks=NUM_BLOCKS) as stack:
            yield stack


def test_a_generation_appears_and_a_second_request_shares_its_blocks(page: Chromium, inspected: Inspected) -> None:
    """78 tokens fill 4 blocks of 16, which whoever asks the same finds."""
    assert len(PROMPT) == 78
    with inspected.held(prompt=PROMPT, max_tokens=HELD_TOKENS, temperature=0) as first:
        page.wait_for("page.model.pool.tables.get(arguments[0]).length > 8", first)
        page.wait_for("document.querySelectorAll('#requests tr').length === 1")
        with inspected.held(prompt=PROMPT, max_tokens=HELD_TOKENS, temperature=0) as second:
            page.wait_for("page.model.pool.sharedPrefix(arguments[0]) === 4", second)
            assert page.run("return page.model.pool.tables.size") == 2
            page.press("n")
            assert page.run("return page.picked") == first
            page.wait_for("page.model.pool.sharedPrefix(arguments[0]) === 4", first)
            assert page.run("return page.model.pool.counts[arguments[0]]", SHARED) == 4
            page.wait_for("document.querySelector('#picked').textContent.includes('the first 4 shared with')")
            assert "shared 4" in page.text("#legend")
            page.press("p")
            assert page.run("return page.picked") == second
            found = f"{second} admitted with 78 tokens, 64 of them found in the cache"
            page.wait_for("document.querySelector('#log').textContent.includes(arguments[0])", found)
            check_the_picture(page)


def check_the_picture(page: Chromium) -> None:
    """What is drawn is what is known: the middle of a referenced cell has its kind's colour, its edge is a gap.

    Looked at in a frame, behind the page's own: between frames more is known than drawn.
    """
    wrong = page.wait_for(
        """
        (() => {
          const { map, model: { pool }, palette } = page, ratio = devicePixelRatio, wrong = [];
          const { width, height } = map.canvas;
          const pixels = new Uint32Array(map.context.getImageData(0, 0, width, height).data.buffer);
          for (let block = 1; block <= pool.numBlocks; block++) {
            if (pool.kind[block] !== 2) continue;
            const { x, y, size } = map.place(block);
            const at = (away) => pixels[Math.round((y + away) * ratio) * width + Math.round((x + away) * ratio)];
            if (at(0) !== palette.pixels[2] || at(size / 2 - 1) !== palette.groundPixel) wrong.push(block);
          }
          return wrong;
        })()
        """
    )
    assert wrong == []


def test_a_fork_copies_the_block_it_writes(page: Chromium, inspected: Inspected) -> None:
    """Two samples of one prompt share its 5 blocks, the last of them partly filled: who writes it first gets a copy."""
    inspected.complete(prompt=PROMPT + "!", n=2, max_tokens=20, temperature=1, seed=1)
    page.wait_for("document.querySelector('#log').textContent.includes('which others rely on: copied to')")
    assert "forked: it names its parent's blocks" in page.text("#log")


def test_it_stops_steps_back_and_exports_what_replay_accepts(
    page: Chromium, inspected: Inspected, tmp_path: Path
) -> None:
    inspected.complete(prompt=PROMPT + "?", n=2, max_tokens=20, temperature=1, seed=2)
    with inspected.held(prompt=PROMPT + "?", max_tokens=HELD_TOKENS, temperature=0) as seq:
        page.wait_for("page.model.pool.tables.has(arguments[0])", seq)
        # It grows, and each time is a moment to step back to. What is heard late may be heard at once.
        times = page.run("return new Set(page.history.marks).size")
        page.wait_for("new Set(page.history.marks).size >= arguments[0]", times + 3)
    idle(page, inspected)
    page.press(" ")
    assert page.run("return page.live") is False
    assert page.text("#live") == "live"
    held = page.run("return page.shown.step")
    inspected.complete(prompt="meanwhile", max_tokens=20, temperature=0)
    page.wait_for("page.model.step > arguments[0]", held)
    assert page.run("return page.shown.step") == held
    # An account of the manager's is compared with what has happened until then: all of that has to be heard.
    idle(page, inspected)
    # Back until somebody is there again.
    page.run("while (!page.shown.pool.sequences.size && page.shown.at > page.history.first) page.step(false); return 0")
    assert page.run("return page.shown.pool.sequences.size") > 0
    assert "ago" in page.text("#clock")
    later = page.run("return page.shown.at")
    page.press(",")
    assert page.run("return page.shown.at") < later
    page.press(".")
    assert page.run("return page.shown.at") == later
    page.press("l")
    assert page.run("return page.live") is True
    page.wait_for("document.querySelector('#clock').textContent === 'live'")
    exported = tmp_path / "page.record"
    exported.write_bytes(bytes(page.run("return Array.from(page.export())")))
    done = CliRunner().invoke(app, ["replay", str(exported)])
    assert done.exit_code == 0, done.output
    assert re.search(r", [1-9]\d* accounts of the manager compared", done.output)
    page.run("page.open(new Uint8Array(arguments[0])); return 0", list(exported.read_bytes()))
    assert page.run("return [page.stream, page.live]") == [None, False]
    assert page.run("return page.shown.pool.numBlocks") == NUM_BLOCKS


def test_everything_can_be_done_from_the_keyboard(page: Chromium, inspected: Inspected) -> None:
    with inspected.held(prompt=PROMPT, max_tokens=HELD_TOKENS, temperature=0) as seq:
        block = page.wait_for("page.model.pool.tables.get(arguments[0])[5]", seq)
        # Tab reaches the map and everything behind it.
        reached = set()
        for _ in range(40):
            page.press("Tab")
            reached.add(page.run("return document.activeElement.id || document.activeElement.textContent"))
        assert {"pools", "pause", "export", "open", "theme", "help", "canvases", "time", "live", str(seq)} <= reached
        page.run("document.getElementById('canvases').focus(); return 0")
        columns = page.run("return page.map.columns")
        page.press("ArrowRight", *["ArrowDown"] * (block // columns), *["ArrowRight"] * (block % columns))
        assert page.run("return page.overlay.cursor") == block
        assert page.text("#said").startswith(f"block {block}, ")
        assert f"of 1 request: {seq}" in page.text("#said")
        page.press("Enter")
        assert page.run("return page.picked") == seq
        page.press("Escape")
        assert page.run("return page.picked") is None
        before = page.run("return page.map.scale")
        page.press("+", "+")
        assert page.run("return page.map.scale") > before
        page.press("0")
        assert page.run("return page.map.scale") == before
        page.press("?")
        assert page.run("return document.getElementById('keys').open") is True
        page.press("Escape")
        assert page.run("return document.getElementById('keys').open") is False


def test_a_block_pointed_at_says_what_it_is_and_never_what_it_holds(page: Chromium, inspected: Inspected) -> None:
    with inspected.held(prompt=PROMPT, max_tokens=HELD_TOKENS, temperature=0) as seq:
        block = page.wait_for("page.model.pool.tables.get(arguments[0])[0]", seq)
        digest = page.wait_for("page.model.pool.digest(arguments[0])", block)
        left, top = page.run(
            "const { left, top } = document.getElementById('map').getBoundingClientRect();"
            "const { x, y } = page.map.place(arguments[0]); return [left + x, top + y]",
            block,
        )
        page.point(left, top)
        page.wait_for("document.getElementById('block').textContent.includes('references')")
        said = page.text("#block")
        assert digest in said
        assert f"block{block}" in said
        assert f"requests{seq}" in said
        assert "tokens" not in said
        page.point(left, top, click=True)
        assert page.run("return page.picked") == seq
    status, body = get(inspected.http, f"/inspect/tokens?manager={inspected.manager}&pool=default&digest={digest}")
    assert (status, body["error"]["code"]) == (403, "tokens_not_told")


def test_dark_is_dark_and_follows_the_system_or_the_button(page: Chromium) -> None:
    def luminance() -> float:
        ground = page.run("return getComputedStyle(document.documentElement).backgroundColor")
        red, green, blue = map(float, re.findall(r"[0-9.]+", ground)[:3])
        return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)

    light, ground = luminance(), page.run("return page.palette.groundPixel")
    assert light > 200
    page.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    page.wait_for("page.palette.groundPixel !== arguments[0]", ground)
    assert luminance() < 50
    page.press("t")
    assert luminance() == light
    page.press("t", "t")
    assert luminance() < 50


def test_kinds_differ_in_luminance(page: Chromium) -> None:
    """Whoever sees no colours still tells kinds apart: neighbours in luminance have a contrast of 1.2 at least."""
    for scheme in ("light", "dark"):
        page.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        page.wait_for("matchMedia(`(prefers-color-scheme: ${arguments[0]})`).matches", scheme)
        page.run("page.recolour(); return 0")
        tones = page.run(
            """
            return Array.from(page.palette.pixels, (pixel) => [0, 8, 16].map((shift) => (pixel >> shift) & 255));
            """
        )
        bright = sorted(map(relative_luminance, tones[:5]))
        ratios = [(above + 0.05) / (below + 0.05) for below, above in itertools.pairwise(bright)]
        assert min(ratios) > 1.2, (scheme, ratios)


def relative_luminance(rgb: list[int]) -> float:
    """As WCAG defines it."""
    linear = [
        value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in (c / 255 for c in rgb)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def get(address: str, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
