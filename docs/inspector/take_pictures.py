"""Takes the pictures of the inspector page: `make inspector-pictures`.

The three services serve a tiny model to requests that share prompts, fork, and together want more blocks than there
are. A second pool, of 100,000 blocks, is the benchmark's.
"""

import contextlib
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "inspector"), str(ROOT / "benchmarks")]

import grpc  # noqa: E402
import inspector as benchmark  # noqa: E402
import successor_model  # noqa: E402
from chromium import Chromium  # noqa: E402
from inspected_stack import Inspected, inspected_stack  # noqa: E402
from kv_process import manager_process  # noqa: E402

from octavo.kv.v1 import kv_manager_pb2_grpc  # noqa: E402
from service.channels import CHANNEL_OPTIONS  # noqa: E402

NUM_BLOCKS = 320
SYSTEM = "you are a clerk who answers letters about the pages of books, in few words and in the order they came in. "
LOAD_SAMPLES = 24  # one a second
CLIENTS = 9
LARGE = 100_000

EXPOSE = "return import('/inspect/main.js').then(({ inspector }) => { window.page = inspector; })"


def take(browser: Chromium, name: str) -> None:
    """The window as it is, once its lists are."""
    browser.run("page.panelsStale = true; page.panelsAt = 0; return 0")
    browser.wait_for("page.panelsStale === false")
    browser.screenshot(HERE / f"{name}.png")


@contextlib.contextmanager
def load(stack: Inspected) -> Iterator[None]:
    """Clients that go on asking until the block ends."""
    ended = threading.Event()

    def ask(number: int) -> None:
        dice = random.Random(number)
        while not ended.is_set():
            words = "".join(dice.choices("abcdefghij ", k=dice.randrange(20, 160)))
            stack.complete(
                prompt=SYSTEM + words,
                n=2 if number % 3 == 0 else 1,
                max_tokens=dice.randrange(200, 900),
                temperature=1,
                seed=number,
            )

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        ended.set()
        for client in clients:
            client.join()


def take_small(browser: Chromium, folder: Path) -> None:
    with inspected_stack(successor_model.write(folder), num_blocks=NUM_BLOCKS, host_memory_mib=1) as stack:
        browser.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
        browser.open(stack.page)
        browser.run(EXPOSE)
        browser.wait_for("page.model.pool !== null")
        with load(stack):
            browser.wait_for("page.charts.samples.length > arguments[0] && page.model.preemptions.length", LOAD_SAMPLES)
            # Whoever shares a prefix, with blocks enough to see the arrows.
            browser.wait_for(
                """
                (() => {
                  for (const [seq, table] of page.model.pool.tables) {
                    if (page.model.pool.sharedPrefix(seq) < 3 || table.length < 16 || table.length > 26) continue;
                    page.pause();
                    page.pick(seq);
                    return true;
                  }
                })()
                """
            )
            take(browser, "table")
            browser.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
            browser.wait_for("document.documentElement.dataset.theme === '' && page.palette.version > 1")
            take(browser, "dark")


def take_large(browser: Chromium) -> None:
    with (
        manager_process("--lease-seconds", "600") as (address, _),
        grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel,
        benchmark.inspector(address) as page,
    ):
        churn = benchmark.Churn(kv_manager_pb2_grpc.KvManagerServiceStub(channel), LARGE)
        churn.begin()
        for _ in range(40):
            churn.update()
        browser.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
        browser.open(page)
        browser.run(EXPOSE)
        browser.wait_for("page.model.pool !== null")
        take(browser, "large")


def main() -> None:
    with Chromium() as browser, tempfile.TemporaryDirectory() as folder:
        take_small(browser, Path(folder))
        take_large(browser)


if __name__ == "__main__":
    main()
