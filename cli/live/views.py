"""A frame of the live view: counts, the block map, who lives in it and who gave way lately."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cli.foreign import printable
from cli.live import mirror
from cli.live.mirror import Mirror, Pages
from cli.pool_views import MARKS, preemptions_view
from cli.pool_views import SHARED as SHARED_MARK
from octavo.kv.v1 import inspect_pb2

# Letter, style and name by what a block is doing; letters, for not everybody tells the colours apart.
LOOKS = {
    mirror.FREE: MARKS[inspect_pb2.BLOCK_STATE_FREE],
    mirror.CACHED: MARKS[inspect_pb2.BLOCK_STATE_CACHED],
    mirror.REFERENCED: MARKS[inspect_pb2.BLOCK_STATE_REFERENCED],
    mirror.SHARED: SHARED_MARK,
    mirror.FENCED: MARKS[inspect_pb2.BLOCK_STATE_FENCED],
}
SWAPPED = ("h", "cyan", "swapped")
"""Host blocks of parked sequences. Which of them it are no event tells, so they are drawn side by side."""
ID_WIDTH = 10
# Above the map, the map's own line about its letters, and the host tier below.
HEADING_LINES = 5
# A table's title, heading and borders.
TABLE_LINES = 5
SEQUENCE_ROWS, PREEMPTION_ROWS, LEAST_MAP_ROWS = 8, 4, 3


def frame(state: Mirror, width: int, height: int, paused: bool) -> RenderableType:
    """Everything, in a terminal of this size."""
    if state.pages is None:
        return Text(printable(state.trouble) or "waiting for the pool's snapshot", style="yellow")
    pages = state.pages
    tables: list[RenderableType] = []
    room = height - HEADING_LINES
    if rows := _rows(len(pages.sequences), SEQUENCE_ROWS, room):
        tables.append(_sequences(state, pages, rows))
        room -= rows + TABLE_LINES
    if rows := _rows(len(state.preemptions), PREEMPTION_ROWS, room):
        tables.append(preemptions_view(list(state.preemptions)[-rows:]))
        room -= rows + TABLE_LINES
    map_of_blocks = block_map(pages.codes, width, max(LEAST_MAP_ROWS, room))
    host = host_map(_swapped(state, pages), state.summary.spec.host_blocks, width)
    return Group(*_heading(state, pages, paused), map_of_blocks, *([host] if host else []), *tables)


def _rows(there: int, most: int, room: int) -> int:
    """How many rows of a table to show; none where the map would have no room beside it."""
    rows = min(there, most)
    return rows if room - rows - TABLE_LINES >= LEAST_MAP_ROWS else 0


def _heading(state: Mirror, pages: Pages, paused: bool) -> list[Text]:
    spec = state.summary.spec
    first = Text(f"{printable(spec.pool)}, epoch {state.summary.header.epoch}, step {state.step}", style="bold")
    first.append(f"  {spec.num_blocks} blocks of {spec.block_size} tokens", style="not bold")
    first.append("  paused" if paused else "  q ends, space pauses", style="not bold dim")
    counts = Text()
    for code, (letter, style, name) in LOOKS.items():
        counts.append(letter, style=style)
        counts.append(f" {name} {pages.counts[code]}  ")
    counts.append(SWAPPED[0], style=SWAPPED[1])
    counts.append(f" {SWAPPED[2]} {_swapped(state, pages)}")
    swapped = sum(each.state == inspect_pb2.SEQUENCE_STATE_SWAPPED for each in pages.sequences.values())
    rate = f"{state.hit_tokens / state.lookup_tokens:.1%}" if state.lookup_tokens else "-"
    life = Text(
        f"{len(pages.sequences) - swapped} running, {swapped} swapped; "
        f"{state.hit_tokens} of {state.lookup_tokens} prompt tokens hit ({rate})"
    )
    if state.trouble:
        life.append(f"  {printable(state.trouble)}", style="yellow")
    for line in (first, counts, life):
        line.no_wrap = True
    return [first, counts, life]


def _swapped(state: Mirror, pages: Pages) -> int:
    return min(pages.host_blocks(), state.summary.spec.host_blocks)


def block_map(codes: bytearray, width: int, rows: int) -> Text:
    """A letter per block; when they are more than fit, per run of blocks: then it is what most of the run is doing."""
    columns = max(1, width - ID_WIDTH)
    per_letter = -(-len(codes) // (columns * rows)) if codes else 1
    shown = Text(no_wrap=True)
    if per_letter > 1:
        shown.append(f"a letter is what most of {per_letter} blocks are doing", style="dim")
    for start in range(0, len(codes), columns * per_letter):
        part = codes[start : start + columns * per_letter]
        shown.append(f"{chr(10) if len(shown) else ''}{start + 1:>{ID_WIDTH - 2}}  ", style="dim")
        for code, run in groupby(_letters(part, per_letter)):
            letter, style, _ = LOOKS[code]
            shown.append(letter * sum(1 for _ in run), style=style)
    return shown


def host_map(used: int, num_blocks: int, width: int) -> Text:
    """The host tier in one row, a letter per block or per run of blocks; empty where there is none."""
    shown = Text(no_wrap=True)
    if num_blocks:
        per_letter = -(-num_blocks // max(1, width - ID_WIDTH))
        letters, taken = -(-num_blocks // per_letter), -(-used // per_letter)
        free, style, _ = LOOKS[mirror.FREE]
        shown.append(f"{'host':>{ID_WIDTH - 2}}  ", style="dim")
        shown.append(SWAPPED[0] * taken, style=SWAPPED[1]).append(free * (letters - taken), style=style)
    return shown


def _letters(codes: bytearray, per_letter: int) -> list[int]:
    if per_letter == 1:
        return list(codes)
    runs = (codes[start : start + per_letter] for start in range(0, len(codes), per_letter))
    return [max(LOOKS, key=run.count) for run in runs]


def _sequences(state: Mirror, pages: Pages, rows: int) -> Table:
    """The largest ones."""
    size = {
        seq: len(pages.tables[seq]) if seq in pages.tables else summary.num_blocks
        for seq, summary in pages.sequences.items()
    }
    listed = sorted(pages.sequences.values(), key=lambda summary: (-size[summary.seq], summary.seq))[:rows]
    more = len(pages.sequences) - len(listed)
    title = "sequences" if not more else f"largest sequences, {more} more"
    table = Table("seq", "state", "blocks", "shared", "slots", "group", "priority", "tenant", title=title)
    for summary in listed:
        state_name = inspect_pb2.SequenceState.Name(summary.state).removeprefix("SEQUENCE_STATE_").lower()
        table.add_row(
            str(summary.seq),
            state_name,
            str(size[summary.seq]),
            str(pages.shared_blocks(summary.seq)),
            str(size[summary.seq] * state.summary.spec.block_size),
            str(summary.group),
            str(summary.priority),
            escape(printable(summary.root.tenant)),
        )
    return table
