"""Looking inside a pool: what the Inspect calls answer. Nothing here changes anything."""

from collections.abc import MutableSequence
from typing import TYPE_CHECKING, TypeVar

from kv_manager.core import views
from kv_manager.core.adoption import NO_HOST_ENTRY
from kv_manager.core.errors import bad_item, sequence_not_found
from kv_manager.core.host_tier import NO_HOST_BLOCK
from kv_manager.core.lease import Lease
from kv_manager.core.slices import Sliced
from octavo.kv.v1 import inspect_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

Response = TypeVar("Response")

MAX_INSPECTED_BLOCKS = 65_536

CAPABILITIES = (
    inspect_pb2.CAPABILITY_PREFIX_SHARING,
    inspect_pb2.CAPABILITY_FORK,
    inspect_pb2.CAPABILITY_PREEMPTION,
    inspect_pb2.CAPABILITY_HOST_TIER,
    inspect_pb2.CAPABILITY_FENCED_REUSE,
    inspect_pb2.CAPABILITY_FAILED_STEPS,
    inspect_pb2.CAPABILITY_LATE_HITS,
    inspect_pb2.CAPABILITY_ROOM_AHEAD,
    inspect_pb2.CAPABILITY_GROUPS,
    inspect_pb2.CAPABILITY_WINDOWS,
    inspect_pb2.CAPABILITY_TENANT_LIMITS,
    inspect_pb2.CAPABILITY_ADOPTION,
    inspect_pb2.CAPABILITY_WATCH,
    inspect_pb2.CAPABILITY_DRAIN,
    inspect_pb2.CAPABILITY_RESET,
)


def summary(pool: "Pool", lease: Lease) -> inspect_pb2.PoolSummary:
    """A pool at a glance."""
    return inspect_pb2.PoolSummary(
        header=pool.header(),
        spec=pool.spec,
        stats=views.stats(pool),
        totals=views.totals(pool),
        completed_step=pool.blocks.completed_step,
        connected=lease.streams > 0,
        lease_remaining_ms=lease.remaining_ms,
        draining=pool.draining,
    )


def pool_with_sequences(pool: "Pool", lease: Lease) -> inspect_pb2.InspectPoolResponse:
    """One pool with its sequences, best rank first."""
    response = inspect_pb2.InspectPoolResponse(summary=summary(pool, lease), recent_preemptions=views.preemptions(pool))
    for each in views.by_rank(pool):
        views.Glance.of(each).write(response.sequences.add())
    return response


def sequence(pool: "Pool", seq: int) -> Sliced[inspect_pb2.InspectSequenceResponse]:
    """One sequence's logical -> physical table: the table as it is now, its blocks as they are when their slice comes.

    Raises:
        ServiceError: NOT_FOUND.
    """
    found = pool.sequences.get(seq)
    if found is None:
        raise sequence_not_found(pool.name, seq)
    response = inspect_pb2.InspectSequenceResponse(
        header=pool.header(),
        summary=views.sequence_summary(found),
        host_table=[NO_HOST_ENTRY if block == NO_HOST_BLOCK else block for block in found.parked_table],
    )
    return _collect(response, response.table, views.blocks_in_slices(pool, list(found.table)))


def blocks(pool: "Pool", request: inspect_pb2.InspectBlocksRequest) -> Sliced[inspect_pb2.InspectBlocksResponse]:
    """A range of blocks, each as it is when its slice comes; the answer ends with the pool.

    Raises:
        ServiceError: INVALID_ARGUMENT.
    """
    if not 1 <= request.count <= MAX_INSPECTED_BLOCKS:
        raise bad_item("count", "OUT_OF_RANGE", f"is {request.count}, must be 1 to {MAX_INSPECTED_BLOCKS}")
    end = min(request.first_block + request.count, pool.blocks.num_blocks + 1)
    response = inspect_pb2.InspectBlocksResponse(header=pool.header())
    return _collect(response, response.blocks, views.blocks_in_slices(pool, range(request.first_block, end)))


def _collect(
    response: Response, into: MutableSequence[inspect_pb2.BlockInfo], infos: Sliced[inspect_pb2.BlockInfo]
) -> Sliced[Response]:
    """The response, once all its blocks are in it."""
    for info in infos:
        if info is None:
            yield None
        else:
            into.append(info)
    yield response
