"""Block copies in plain torch."""

from collections.abc import Sequence

import torch

from kernels.block_pairs import check_copies, runs


def copy_blocks(pool: torch.Tensor, sources: Sequence[int], destinations: Sequence[int]) -> None:
    """`kernels.copy_blocks`."""
    check_copies(sources, destinations, pool.shape[0])
    if pool.device.type == "cpu":
        for run in runs(sources, destinations):
            pool[run.destination : run.destination + run.length].copy_(pool[run.source : run.source + run.length])
    elif sources:  # one launch for all, whatever a temporary copy costs
        source_ids = torch.tensor(sources, device=pool.device)
        pool.index_copy_(0, torch.tensor(destinations, device=pool.device), pool.index_select(0, source_ids))
