"""What ``octavo inspect`` draws: one view per answer of the KV manager."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc

# The most blocks one InspectBlocks call may ask for.
BLOCKS_PER_CALL = 65_536
ROW_BLOCKS = 64
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


def view(answer: Message) -> RenderableType:
    """The answer as rich draws it."""
    return VIEWS[type(answer)](answer)


def pool_view(answer: inspect_pb2.InspectPoolResponse) -> RenderableType:
    summary = answer.summary
    stats, totals, spec = summary.stats, summary.totals, summary.spec
    hit_rate = f"{totals.hit_tokens / totals.lookup_tokens:.1%}" if totals.lookup_tokens else "-"
    rows = [
        ("pool", f"{summary.header.pool}, epoch {summary.header.epoch}, step {summary.header.step}"),
        ("worker", f"{spec.worker_id}, {'connected' if summary.connected else 'not connected'}"),
        ("blocks", f"{stats.num_blocks} of {spec.block_size} tokens, {_size(spec.block_bytes)} each"),
        (
            "states",
            f"{stats.free_blocks} free, {stats.cached_blocks} cached, {stats.referenced_blocks} referenced, "
            f"{stats.fenced_blocks} fenced",
        ),
        ("sequences", f"{stats.running_sequences} running, {stats.swapped_sequences} swapped"),
        ("prefix cache", f"{totals.hit_tokens} of {totals.lookup_tokens} prompt tokens hit ({hit_rate})"),
        ("preemptions", f"{totals.recompute_preemptions} recompute, {totals.swap_preemptions} swap"),
    ]
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in rows:
        table.add_row(f"[bold]{key}[/bold]", escape(value))
    parts: list[RenderableType] = [table]
    if answer.sequences:
        parts.append(_sequences(answer))
    return Group(*parts)


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
            escape(sequence.root.tenant),
        )
    return table


def sequence_view(answer: inspect_pb2.InspectSequenceResponse) -> RenderableType:
    """Logical -> physical: one row per entry of the block table."""
    table = Table("logical", "block", "state", "refs", "digest", "named by", title=f"sequence {answer.summary.seq}")
    for index, block in enumerate(answer.table):
        table.add_row(
            str(index),
            str(block.block),
            _name(inspect_pb2.BlockState.Name(block.state), "BLOCK_STATE_"),
            str(block.ref_count),
            block.digest.hex()[:12] or "-",
            ", ".join(map(str, block.owners)),
        )
    return table


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
    return Text("\n".join(["integrity: BROKEN", *answer.violations]), style="bold red")


def _name(value: str, prefix: str) -> str:
    return value.removeprefix(prefix).lower()


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.2f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.1f} KiB"


VIEWS: dict[type[Message], Callable[[Any], RenderableType]] = {
    inspect_pb2.InspectPoolResponse: pool_view,
    inspect_pb2.InspectSequenceResponse: sequence_view,
    inspect_pb2.InspectBlocksResponse: blocks_view,
    inspect_pb2.CheckIntegrityResponse: integrity_view,
}
