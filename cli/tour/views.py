"""A scene drawn: what was told, the pool block by block, and the tables of whoever lives."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.pool_views import MARKS, SHARED
from cli.tour.pool import TourPool, Words
from cli.tour.scene import Scene
from octavo.kv.v1 import inspect_pb2


def scene_view(number: int, count: int, scene: Scene, pool: TourPool) -> RenderableType:
    """The whole scene."""
    title = Text(f"{number}/{count}  {scene.title}", style="bold")
    title.append(f"  (docs/architecture.md, {scene.rule})", style="dim")
    parts: list[RenderableType] = [title, *(Text(line) for line in scene.told), "", _blocks(pool)]
    if pool.look().sequences:
        parts += ["", _tables(pool)]
    return Group(*parts, Text(_counts(pool), style="dim"), "")


def _blocks(pool: TourPool) -> Table:
    table = _table("block", "holds", "state", "refs", "named by")
    for info in pool.blocks():
        _, style, name = SHARED if info.ref_count > 1 else MARKS[info.state]
        table.add_row(
            str(info.block),
            _held(pool.device.get(info.block), info),
            Text(name, style=style),
            str(info.ref_count),
            " ".join(pool.letter(owner) for owner in info.owners),
        )
    return table


def _held(words: Words | None, info: inspect_pb2.BlockInfo) -> str:
    """What lies in a block; a free one may hold anything."""
    if words is None or info.state == inspect_pb2.BLOCK_STATE_FREE:
        return "-"
    return " ".join(word or "." for word in words)


def _tables(pool: TourPool) -> Table:
    table = _table("sequence", "tokens", "logical -> physical")
    for summary in pool.look().sequences:
        speaker = pool.speakers[pool.letter(summary.seq)]
        answer = pool.sequence(speaker.letter)
        if answer.host_table:
            entries = [f"{index}->host {block}" for index, block in enumerate(answer.host_table)]
        else:
            entries = [f"{index}->{entry.block}" for index, entry in enumerate(answer.table)]
        table.add_row(speaker.letter, str(speaker.written), "  ".join(entries))
    return table


def _counts(pool: TourPool) -> str:
    stats = pool.look().summary.stats
    return (
        f"free {stats.free_blocks}, cached {stats.cached_blocks}, referenced {stats.referenced_blocks}, "
        f"host {stats.host_blocks - stats.host_free_blocks} of {stats.host_blocks}; step {pool.step}"
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
