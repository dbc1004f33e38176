"""Room ahead: spare blocks for sequences that would like to ask less often (design 3.8)."""

from typing import TYPE_CHECKING

from kv_manager.core.step_work import StepWork

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


def serve(pool: "Pool", work: StepWork) -> None:
    """Extend the grants of this step from what is left beyond the watermark: last of all, by rank, never with a victim.

    Room is no promise of a write, so digests do not follow it.
    """
    advances = work.request.advances
    if work.stalled or not any(advances.rooms):
        return
    grants = {grant.seq: grant for grant in work.response.grants}
    rows = [
        (pool.sequences[seq], room)
        for seq, room in zip(advances.seqs, advances.rooms, strict=True)
        if seq in grants and seq in pool.sequences
    ]
    rows.sort(key=lambda row: (row[0].rank, row[0].id))
    blocks, reserve = pool.blocks, pool.spec.watermark_blocks + 1
    for sequence, room in rows:
        table, quota = sequence.table, sequence.quota
        end = min(-(-room // pool.block_size), blocks.num_blocks)
        taken: list[int] = []
        while (
            len(table) + len(taken) < end
            and blocks.available > reserve
            and (quota is None or quota.used + len(taken) < quota.soft)
        ):
            taken.append(blocks.take())
        table += taken
        if quota is not None:
            quota.name(taken)
        grants[sequence.id].blocks.extend(taken)
