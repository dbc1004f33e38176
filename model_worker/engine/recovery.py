"""Without a manager: what still runs, and what the next one may adopt (design 3.6)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from model_worker.engine.answer import rows_of
from model_worker.engine.batch import Batch
from model_worker.engine.sequence import Phase
from model_worker.engine.wire import pack_ids, root_of
from octavo.kv.v1 import attach_pb2

if TYPE_CHECKING:
    from model_worker.engine.scheduler import Scheduler


def snapshot(scheduler: "Scheduler") -> Iterator[attach_pb2.LiveSequence]:
    """The sequences a new manager may adopt; the device is drained, so ``computed`` counts only what is there."""
    for sequence in [*scheduler.running.values(), *scheduler.parked.values()]:
        if sequence.phase is Phase.ENDED:
            continue  # its blocks are free for a manager that has never heard of it
        yield attach_pb2.LiveSequence(
            seq=sequence.seq,
            token_ids=pack_ids(sequence.tokens),
            computed_tokens=sequence.computed,
            granted_tokens=sequence.computed,
            hit_blocks=sequence.hit_blocks,
            table=sequence.table,
            host_table=sequence.host_table,
            group=sequence.group.id if sequence.group is not None else None,
            priority=sequence.told_priority,
            arrival=sequence.arrival,
            root=root_of(sequence),
            fork_tokens=sequence.fork_tokens,
        )


def in_hand(scheduler: "Scheduler") -> Batch:
    """What can run without a manager: the slots granted so far. It counts as part of the last answered step.

    Whoever may share the block it writes next, or leads others, waits for the manager's answer to that.
    """
    budget = scheduler.limits.max_batch_tokens
    ends = {}
    for sequence in sorted(scheduler.running.values(), key=lambda one: one.rank):
        slots = len(sequence.table) * scheduler.limits.block_size
        end = min(len(sequence.tokens), slots, sequence.computed + min(budget, scheduler.limits.max_chunk))
        if sequence.forked or (sequence.group is not None and sequence.group.followers):
            continue
        if sequence.phase is Phase.RUNNING and end > sequence.computed and not sequence.exhausted:
            ends[sequence.seq] = end
            budget -= end - sequence.computed
    return Batch(scheduler.step, rows_of(scheduler, ends))
