"""``octavo simulate --paper``: our figures beside those of the original paged-attention paper.

W. Kwon and others, *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023:
OPT-13B, 15,736 token slots, block size 16, sequences of at most 2,048 tokens. Shares of memory and requests in the
batch are for ShareGPT's lengths, sharing for Alpaca's. Contiguous regions are a buddy allocator's there and so they are
here.

All requests wait from the start; averages are over the steps after a quarter of them has finished, while some wait.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cli.simulate.beams import TURNOVER, Survivors
from cli.simulate.contiguous import RESERVATIONS
from cli.simulate.costs import A100_40, OPT_13B, Costs
from cli.simulate.experiments import Setting, run_contiguous, run_paged
from cli.simulate.lengths import ALPACA, SHAREGPT
from cli.simulate.manager_port import ManagerPort
from cli.simulate.measuring import Averages, Window
from cli.simulate.progress import Bars
from cli.simulate.scheduling import Limits
from cli.simulate.workload import Request, drawn

SLOTS = 15_736
BLOCK_SIZE = 16
WATERMARK = 0.01
WIDTHS = (2, 4, 6)
BLOCKS_A_SEQUENCE = 12
"""Groups run side by side as if each of their sequences took so many blocks: nearly none is preempted then."""

BATCH = "requests in the batch"
TOKEN_SHARES = {"maximum": 20.4, "power of two": 26.8, "oracle": 38.2}
PAGED_TOKEN_SHARE = 96.3
BATCHES = {"maximum": 7.00, "power of two": 9.81, "oracle": 13.62}
SAVED_BY_SAMPLES = dict(zip(WIDTHS, (6.1, 8.5, 9.8), strict=True))
SAVED_BY_BEAMS = dict(zip(WIDTHS, (37.6, 53.1, 55.2), strict=True))


class Bounds(NamedTuple):
    """What a figure must lie between."""

    low: float
    high: float

    @classmethod
    def around(cls, published: float, points: float) -> "Bounds":
        """Within so many points of what was published."""
        return cls(published - points, published + points)


class Figure(NamedTuple):
    """A figure of ours.

    Attributes:
        published: the paper's, None where it has none.
        bounds: what ours must lie between, None where nothing is promised.
        digits: how many are worth showing.
    """

    section: str
    name: str
    ours: float
    published: float | None = None
    bounds: Bounds | None = None
    digits: int = 1

    @property
    def holds(self) -> bool:
        """Whether it keeps its bounds."""
        return self.bounds is None or self.bounds.low <= self.ours <= self.bounds.high


def figures(port: ManagerPort, count: int, seed: int, bars: Bars) -> Iterator[Figure]:
    """All of them, each as soon as it is there.

    Args:
        count: requests of each run.
    """
    batches: list[Figure] = []
    setting = _setting(count)
    requests = drawn(SHAREGPT, count, 0, seed)
    for name in RESERVATIONS:
        what = f"{name}, ShareGPT-like"
        averages = run_contiguous(name, "buddy", requests, setting, bars.watching(what, count)).averages
        yield _token_share(what, averages, TOKEN_SHARES[name], Bounds.around(TOKEN_SHARES[name], 5))
        batches.append(Figure(BATCH, what, averages.batch, BATCHES[name], digits=2))
    paged: list[Averages] = []
    for lengths in (SHAREGPT, ALPACA):
        requests = drawn(lengths, count, 0, seed)
        watching = bars.watching(f"paged, {lengths.name}", count)
        paged.append(run_paged(port, requests, setting, watching=watching).averages)
    chats, instructions = paged
    yield _token_share("paged, ShareGPT-like", chats, PAGED_TOKEN_SHARE, Bounds(95, 100))
    yield _token_share("paged, Alpaca-like", instructions)
    section = "blocks in use that hold tokens, %"
    yield Figure(section, "paged, ShareGPT-like", 100 * chats.filled)
    yield Figure(section, "paged, Alpaca-like", 100 * instructions.filled, bounds=Bounds(90, 95))
    yield from batches
    yield Figure(BATCH, "paged, ShareGPT-like", chats.batch, digits=2)
    yield from _sharing(port, requests, seed, bars)


def _token_share(what: str, averages: Averages, published: float | None = None, bounds: Bounds | None = None) -> Figure:
    return Figure("memory that holds tokens, %", what, 100 * averages.shares.tokens, published, bounds)


def _sharing(port: ManagerPort, requests: Sequence[Request], seed: int, bars: Bars) -> Iterator[Figure]:
    for name, published, points, turnover in (
        ("parallel samples", SAVED_BY_SAMPLES, 2, 0.0),
        ("beams", SAVED_BY_BEAMS, 10, TURNOVER),
    ):
        for width in WIDTHS:
            what = f"{width} {name}, Alpaca-like"
            survivors = Survivors(turnover, seed) if turnover else None
            watching = bars.watching(what, len(requests))
            averages = run_paged(port, requests, _setting(len(requests), width), survivors, watching).averages
            saved = 100 * averages.sharing_saved
            bounds = Bounds.around(published[width], points)
            yield Figure("blocks saved by sharing, %", what, saved, published[width], bounds)


def _setting(count: int, width: int = 1) -> Setting:
    together = SLOTS // BLOCK_SIZE // (width * BLOCKS_A_SEQUENCE) if width > 1 else count
    return Setting(
        slots=SLOTS,
        max_tokens=OPT_13B.max_tokens,
        block_size=BLOCK_SIZE,
        costs=Costs(OPT_13B, A100_40),
        limits=Limits(max_jobs=together, width=width),
        window=Window(warm_up=count // 4, loaded=True),
        watermark=WATERMARK,
    )
