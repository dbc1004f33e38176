"""What ``octavo inspect`` draws: one view per answer of the KV manager."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cli.foreign import printable
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc, steps_pb2

# The most blocks one InspectBlocks call may ask for.
BLOCKS_PER_CALL = 65_536
ROW_BLOCKS = 64
# A host table's entry that slid out of the window.
NO_HOST_BLOCK = 2**32 - 1
# A shared block is a referenced one that several tables name: worth its own letter, for sharing is the point of paging.
SHARED = ("S", "bold magenta", "shared")
MARKS = {
    inspect_pb2.BLOCK_STATE_NULL: ("0", "dim", "null"),
    inspect_pb2.BLOCK_STATE_FREE: (".", "dim", "free"),
    inspect_pb2.BLOCK_STATE_CACHED: ("c", "yellow", "cached"),
    inspect_pb2.BLOCK_STATE_REFERENCED: ("r", "green", "referenced"),
    inspect_pb2.BLOCK_STATE_FENCED: ("f", "red", "fenced"),
}


def all_blocks(stub: "kv_manager_pb2_grpc.KvManagerServiceStub", pool: str) -> inspect_pb2.InspectBlocksResponse:
    """Every block of the pool, the null block included, in as many calls as it takes."""
    found = inspect_pb2.InspectBlocksResponse()
    while True:
        first = len(found.blocks)
        request = inspect_pb2.InspectBlocksRequest(pool=pool, first_block=first, count=BLOCKS_PER_CALL)
        part = stub.InspectBlocks(request)
        found.MergeFrom(part)
        if len(part.blocks) < BLOCKS_PER_CALL:
            return found


def pool_view(answer: inspect_pb2.InspectPoolResponse) -> RenderableType:
    summary = answer.summary
    stats, totals, spec = summary.stats, summary.totals, summary.spec
    hit_rate = f"{totals.hit_tokens / totals.lookup_tokens:.1%}" if totals.lookup_tokens else "-"
    rows = [
        (
            "pool",
            f"{printable(summary.header.pool)}, epoch {summary.header.epoch}, step {summary.header.step} "
            f"({summary.completed_step} completed)",
        ),
        ("worker", f"{printable(spec.worker_id)}, {_presence(summary)}"),
        ("blocks", f"{stats.num_blocks} of {spec.block_size} tokens, {_size(spec.block_bytes)} each"),
        (
            "states",
            f"{stats.free_blocks} free, {stats.cached_blocks} cached, {stats.referenced_blocks} referenced, "
            f"{stats.fenced_blocks} fenced",
        ),
        ("host tier", f"{stats.host_blocks - stats.host_free_blocks} of {stats.host_blocks} blocks parked"),
        ("sequences", f"{stats.running_sequences} running, {stats.swapped_sequences} swapped"),
        ("prefix cache", f"{totals.hit_tokens} of {totals.lookup_tokens} prompt tokens hit ({hit_rate})"),
        ("sharing", f"{totals.forks} forks, {totals.copied_blocks} blocks copied on write"),
        ("preemptions", f"{totals.recompute_preemptions} recompute, {totals.swap_preemptions} swap"),
    ]
    if not stats.host_blocks:
        rows = [row for row in rows if row[0] != "host tier"]
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in rows:
        table.add_row(f"[bold]{key}[/bold]", escape(value))
    parts: list[RenderableType] = [table]
    if answer.sequences:
        parts.append(_sequences(answer))
    if answer.recent_preemptions:
        parts.append(preemptions_view(answer.recent_preemptions))
    return Group(*parts)


def _presence(summary: inspect_pb2.PoolSummary) -> str:
    words = ["connected" if summary.connected else f"not connected, {summary.lease_remaining_ms / 1000:.1f} s of lease"]
    if summary.draining:
        words.append("draining")
    return ", ".join(words)


def preemptions_view(records: Sequence[inspect_pb2.PreemptionRecord]) -> Table:
    """Who gave way, newest first, with both prices: the mode is the cheaper one that had room."""
    title = "last preemptions"
    table = Table("step", "seq", "gave way to", "reason", "mode", "recompute costs", "swap costs", title=title)
    for record in reversed(records):
        told = record.preempted
        table.add_row(
            str(record.step),
            str(told.seq),
            "itself" if told.requester == told.seq else str(told.requester),
            _name(steps_pb2.PreemptionReason.Name(told.reason), "PREEMPTION_REASON_").replace("_", " "),
            _name(steps_pb2.PreemptionMode.Name(told.mode), "PREEMPTION_MODE_"),
            _cost(told.recompute_seconds),
            _cost(told.swap_seconds),
        )
    return table


def _cost(seconds: float) -> str:
    """Infinity: no room in the host tier. 0: the worker has measured no speeds yet."""
    if math.isinf(seconds):
        return "no room"
    return f"{seconds * 1000:.1f} ms" if seconds else "-"


def _sequences(answer: inspect_pb2.InspectPoolResponse) -> Table:
    table = Table("seq", "state", "tokens", "committed", "blocks", "priority", "tenant")
    for sequence in answer.sequences:
        table.add_row(
            str(sequence.seq),
            _name(inspect_pb2.SequenceState.Name(sequence.state), "SEQUENCE_STATE_"),
            str(sequence.granted_tokens),
            str(sequence.committed_tokens),
            str(sequence.num_blocks),
            str(sequence.priority),
            escape(printable(sequence.root.tenant)),
        )
    return table


def sequence_view(answer: inspect_pb2.InspectSequenceResponse) -> RenderableType:
    """Logical -> physical: one row per entry of the block table, in the pool or in the host tier."""
    summary = answer.summary
    state = _name(inspect_pb2.SequenceState.Name(summary.state), "SEQUENCE_STATE_")
    title = (
        f"sequence {summary.seq}, {state}: {summary.committed_tokens} tokens known, {summary.granted_tokens} granted, "
        f"group {summary.group}, priority {summary.priority}"
    )
    if answer.host_table:
        parked = Table("logical", "host block")
        for index, host_block in enumerate(answer.host_table):
            parked.add_row(str(index), "out of the window" if host_block == NO_HOST_BLOCK else str(host_block))
        return Group(title, parked)
    table = Table("logical", "block", "state", "refs", "digest", "named by")
    for index, block in enumerate(answer.table):
        table.add_row(
            str(index),
            str(block.block),
            _state(block),
            str(block.ref_count),
            block.digest.hex()[:12] or "-",
            _owners(block),
        )
    return Group(title, table)


def block_view(answer: inspect_pb2.InspectBlocksResponse) -> RenderableType:
    """One block: what it holds and who relies on it."""
    (block,) = answer.blocks
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in (
        ("block", str(block.block)),
        ("state", _state(block) + (f", not granted before step {block.fence} has completed" if block.fence else "")),
        ("refs", str(block.ref_count)),
        ("named by", _owners(block) or "nobody"),
        ("digest", block.digest.hex() or "-"),
    ):
        table.add_row(f"[bold]{key}[/bold]", value)
    return table


def _state(block: inspect_pb2.BlockInfo) -> str:
    return _name(inspect_pb2.BlockState.Name(block.state), "BLOCK_STATE_")


def _owners(block: inspect_pb2.BlockInfo) -> str:
    """The manager names the first owners only; the references say how many entries there are."""
    named = ", ".join(map(str, block.owners))
    return f"{named}, ..." if len(block.owners) < block.ref_count else named


def blocks_view(answer: inspect_pb2.InspectBlocksResponse) -> RenderableType:
    """One letter per block, ROW_BLOCKS to a row, with the id of the row's first block."""
    legend = Text()
    for letter, style, title in [*MARKS.values(), SHARED]:
        legend.append(letter, style=style)
        legend.append(f" {title}  ")
    map_of_blocks = Text()
    for index, block in enumerate(answer.blocks):
        if index % ROW_BLOCKS == 0:
            map_of_blocks.append(f"\n{block.block:>8}  ", style="dim")
        letter, style, _ = SHARED if block.ref_count > 1 else MARKS[block.state]
        map_of_blocks.append(letter, style=style)
    return Group(legend + map_of_blocks)


def integrity_view(answer: inspect_pb2.CheckIntegrityResponse) -> RenderableType:
    if not answer.violations:
        return Text("integrity: every invariant holds", style="green")
    return Text("\n".join(["integrity: BROKEN", *map(printable, answer.violations)]), style="bold red")


def _name(value: str, prefix: str) -> str:
    return value.removeprefix(prefix).lower()


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.2f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.1f} KiB"


VIEWS: dict[str, Callable[[Any], RenderableType]] = {
    "pool": pool_view,
    "sequence": sequence_view,
    "block": block_view,
    "blocks": blocks_view,
    "integrity": integrity_view,
}
"""By what was asked, in the words of ``octavo inspect --json``."""
