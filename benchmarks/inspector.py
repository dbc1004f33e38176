"""What the inspector costs: the browser per update of a large pool, and the manager per step with somebody looking.

    python benchmarks/inspector.py [--blocks 100000] [--updates 300] [--steps 200]

The browser: a manager's pool of so many blocks, watched through `octavo inspect --web` by headless Chromium, rendering
in software. Every update is a step that changes 1 % of the blocks, which lie scattered over the pool: a sequence comes
or goes. Counted in the browser, per update: reading the messages, changing the model, drawing the map, waiting until
the pixels are there, and the lists and timelines where they are due; once with all blocks in view and once zoomed in,
where cells have patterns.

The manager: see ``inspector_manager``.
"""

import argparse
import itertools
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

# A script beside this one is named after the package it measures; it must not hide it.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(folder for folder in sys.path if Path(folder or ".").resolve() != HERE), str(HERE)]
sys.path.append(str(HERE.parent / "tests" / "support"))

from chromium import Chromium  # noqa: E402
from inspector_manager import inspector, measure_inside, measure_manager  # noqa: E402
from kv_process import manager_process  # noqa: E402

from octavo.kv.v1 import attach_pb2, common_pb2, kv_manager_pb2_grpc, steps_pb2  # noqa: E402
from service.channels import CHANNEL_OPTIONS  # noqa: E402

POOL = "pool"
BLOCK_SIZE = 16
UPDATE_SHARE = 0.01
FULL_SHARE = 0.6
UPDATES_PER_SECOND = 9  # fewer than the ten messages a second that the page is sent


@dataclass(slots=True)
class Churn:
    """A pool, 60 % of it in use, in which every step changes 1 % of the blocks: a sequence comes, or one goes.

    The first sequences grow in turns, a block each, so the blocks of each lie all over the pool.
    """

    stub: "kv_manager_pb2_grpc.KvManagerServiceStub"
    num_blocks: int
    step: int = 0
    epoch: int = 0
    live: list[int] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    _seqs: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def changed(self) -> int:
        """Blocks that a step changes."""
        return round(self.num_blocks * UPDATE_SHARE)

    def begin(self) -> None:
        """Attach and fill."""
        spec = attach_pb2.PoolSpec(
            pool=POOL,
            worker_id="churn",
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
        )
        request = attach_pb2.AttachRequest(pool=spec)
        self.epoch = self.stub.Attach(iter([request]), wait_for_ready=True).header.epoch
        self.live = [next(self._seqs) for _ in range(round(FULL_SHARE / UPDATE_SHARE))]
        self.send(admits=[self._admit(seq, BLOCK_SIZE) for seq in self.live])
        for length in range(2 * BLOCK_SIZE, (self.changed + 1) * BLOCK_SIZE, BLOCK_SIZE):
            self.send(advances=steps_pb2.Advances(seqs=self.live, num_tokens=[length] * len(self.live)))

    def update(self) -> None:
        """The next step."""
        if self.step % 2:
            seq = next(self._seqs)
            self.send(admits=[self._admit(seq, self.changed * BLOCK_SIZE)])
            self.live.append(seq)
        else:
            seq = self.live.pop(self.dice.randrange(len(self.live)))
            self.send(releases=[steps_pb2.Release(seq=seq, reason=steps_pb2.RELEASE_REASON_FINISHED)])

    def send(self, **items: object) -> steps_pb2.StepResponse:
        self.step += 1
        request = steps_pb2.StepRequest(
            pool=POOL,
            epoch=self.epoch,
            step=self.step,
            completed_step=self.step - 1,
            **items,  # type: ignore[arg-type]
        )
        response = self.stub.Step(request)
        assert not response.waiting, response.waiting
        assert not response.rejected, response.rejected
        return response

    def _admit(self, seq: int, num_tokens: int) -> steps_pb2.Admit:
        ids = self.dice.randbytes(4 * self.changed * BLOCK_SIZE)
        return steps_pb2.Admit(seq=seq, token_ids=ids, num_tokens=num_tokens, arrival=seq)


KNOWN = """
    const { map, model: { pool }, palette } = page, { width, height } = map.cells;
    const drawn = new Uint32Array(map.cellContext.getImageData(0, 0, width, height).data.buffer);
    const wrong = Array.from(pool.kind).filter((kind, block) => drawn[block] !== palette.pixels[kind]).length;
    return [pool.kind.length, pool.counts[0], pool.counts[1], pool.counts[2] + pool.counts[3], wrong];
"""
"""Blocks, those free, cached and referenced, and those whose pixel has another colour than their kind's."""

MEASURE = """
    const { inspector } = await import("/inspect/main.js");
    // A look at a pixel waits until everything before it is drawn.
    const draw = inspector.map.draw.bind(inspector.map);
    inspector.map.draw = (changed) => { draw(changed); inspector.map.context.getImageData(0, 0, 1, 1); };
    globalThis.page = inspector;
"""


def browser_costs(
    num_blocks: int, updates: int, *, zoomed: bool, browser: Chromium, page: str, churn: Churn
) -> list[float]:
    """Milliseconds per update."""
    browser.open(page)
    browser.run(f"return (async () => {{ {MEASURE} }})()")
    browser.wait_for("page.model.pool !== null")
    if zoomed:
        browser.run("while (!page.map.patterned) page.map.zoom(1.3); return 0")
    costs: list[float] = []
    while len(costs) < updates:
        browser.run("page.frames.length = 0; return 0")
        for _ in range(UPDATES_PER_SECOND):
            began = time.perf_counter()
            churn.update()
            time.sleep(max(0.0, 1 / UPDATES_PER_SECOND - (time.perf_counter() - began)))
        browser.wait_for("page.model.step >= arguments[0]", churn.step)
        frames = browser.run("return page.frames.filter(({ blocks }) => blocks > 0)")
        # An update that came while another was being drawn is drawn with it, and counts as one of twice the size.
        costs += [frame["ms"] for frame in frames if frame["blocks"] >= churn.changed]
    stats = churn.send().stats
    known = [num_blocks + 1, stats.free_blocks, stats.cached_blocks, stats.referenced_blocks, 0]
    assert browser.run(KNOWN) == known, (browser.run(KNOWN), known)
    return costs


def measure_browser(num_blocks: int, updates: int) -> None:
    with (
        manager_process("--lease-seconds", "600") as (address, _),
        grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel,
        inspector(address) as page,
        Chromium() as browser,
    ):
        churn = Churn(kv_manager_pb2_grpc.KvManagerServiceStub(channel), num_blocks)
        churn.begin()
        print("| blocks | view | updates | blocks each | p50 ms | p95 ms | longest ms |\n|---|---|---|---|---|---|---|")
        for zoomed, view in ((False, "all blocks"), (True, "zoomed in, patterns")):
            costs = browser_costs(num_blocks, updates, zoomed=zoomed, browser=browser, page=page, churn=churn)
            percentiles = statistics.quantiles(costs, n=100)
            print(
                f"| {num_blocks:,} | {view} | {len(costs)} | {churn.changed:,} | {percentiles[49]:.1f} | "
                f"{percentiles[94]:.1f} | {max(costs):.1f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--steps", type=int, default=200, help="of each round of the managers'")
    # What a step of 32 sequences takes the worker on two cores (docs/performance.md).
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=73.0, help="how long a step of the worker takes")
    parser.add_argument("--ahead", action="store_true", help="ask for room ahead, so that most steps make no request")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("browser", "manager"), help="one of the two")
    given = parser.parse_args()
    print(
        f"{platform.processor()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, software rendering\n"
    )
    if given.only != "manager":
        measure_browser(given.blocks, given.updates)
    if given.only != "browser":
        step_seconds = given.step_ms / 1000
        measure_inside(given.sequences, 2 * given.steps, step_seconds, given.rounds, ahead=given.ahead)
        measure_manager(given.sequences, given.steps, step_seconds, given.rounds, ahead=given.ahead)


if __name__ == "__main__":
    main()
