"""What it costs to serve a request on a worker, in tokens. Pure; docs/routing.md derives and publishes it.

    cost = prefix_weight * (prompt tokens - cached tokens) + load

The tokens that are not cached count twice by default: once because this request waits for them, and once because all
that come after it do. The load is what the worker computes before: it is waited for once.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

PREFIX_WEIGHT = 2.0

Place = TypeVar("Place")


class Candidate(NamedTuple, Generic[Place]):
    """One worker as a request sees it.

    Attributes:
        place: the worker.
        cached_tokens: tokens of the prompt that it need not compute.
        load_tokens: tokens that it has to compute for others.
        free_blocks: blocks of its pool that hold nothing, not even what may be found again.
    """

    place: Place
    cached_tokens: int
    load_tokens: int
    free_blocks: int = 0


def cost(candidate: Candidate[Place], prompt_tokens: int, prefix_weight: float = PREFIX_WEIGHT) -> float:
    """The cost of a prompt of ``prompt_tokens`` there; a prompt found whole still computes its last token."""
    uncached = max(1, prompt_tokens - candidate.cached_tokens)
    return prefix_weight * uncached + candidate.load_tokens


def cheapest(
    candidates: Iterable[Candidate[Place]], prompt_tokens: int, prefix_weight: float = PREFIX_WEIGHT
) -> Candidate[Place]:
    """The one of least cost; of equals the one of least load, then of most room, then the first.

    So an idle fleet spreads new prefixes over all of its pools before any forgets one.
    """

    def rank(one: Candidate[Place]) -> tuple[float, int, int]:
        return cost(one, prompt_tokens, prefix_weight), one.load_tokens, -one.free_blocks

    return min(candidates, key=rank)


def least_loaded(candidates: Sequence[Candidate[Place]]) -> Candidate[Place]:
    """The one of least load, then the first."""
    return min(candidates, key=lambda one: one.load_tokens)
