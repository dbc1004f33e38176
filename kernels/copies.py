"""Block copies: what copy-on-write orders."""

from collections.abc import Sequence

import torch


def copy_blocks(pool: torch.Tensor, sources: Sequence[int], destinations: Sequence[int]) -> None:
    """Copies whole blocks (all layers) inside the pool, in place: block destinations[i] becomes block sources[i].

    The copies of one call are unordered, so their meaning must not depend on an order. ValueError, with the pool
    untouched, when the two lists differ in length, a destination occurs twice or is also a source (a chain, or a copy
    onto itself), a block lies outside the pool, or the null block takes part.
    """
    if len(sources) != len(destinations):
        raise ValueError(f"{len(sources)} sources for {len(destinations)} destinations")
    if not sources:
        return
    last = pool.shape[0] - 1
    for block in (*sources, *destinations):
        if not 1 <= block <= last:
            raise ValueError(f"block {block} cannot be copied: a block id lies in 1..{last}, and 0 is the null block")
    distinct = set(destinations)
    if len(distinct) != len(destinations):
        twice = sorted(block for block in distinct if destinations.count(block) > 1)
        raise ValueError(f"blocks {twice} are the destination of more than one copy")
    if chained := sorted(distinct.intersection(sources)):
        raise ValueError(f"blocks {chained} are both source and destination of copies in one call")
    source_ids = torch.tensor(sources, device=pool.device)
    pool.index_copy_(0, torch.tensor(destinations, device=pool.device), pool.index_select(0, source_ids))
