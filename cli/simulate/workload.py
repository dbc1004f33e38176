"""What arrives: requests with their lengths and times."""

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cli.simulate.lengths import Lengths


class Request(NamedTuple):
    """A request as a trace tells of it.

    Attributes:
        arrival: seconds since the start.
        prompt_tokens: at least 1.
        output_tokens: how many it generates, at least 1; no allocator but the oracle knows it.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values are stored at its end: those of the last token sampled never are."""
        return self.prompt_tokens + self.output_tokens - 1


def drawn(lengths: Lengths, count: int, rate: float, seed: int) -> list[Request]:
    """Requests of drawn lengths.

    Args:
        rate: of a Poisson process, requests a second; 0 lets all of them wait from the start.
    """
    return list(_arriving(lengths.draw(count, seed), rate, random.Random(f"{seed} arrivals")))


def _arriving(pairs: Iterable[tuple[int, int]], rate: float, dice: random.Random) -> Iterator[Request]:
    at = 0.0
    for prompt_tokens, output_tokens in pairs:
        yield Request(at, prompt_tokens, output_tokens)
        if rate:
            at += dice.expovariate(rate)


def faster(requests: Iterable[Request], speed: float) -> list[Request]:
    """The same requests at ``speed`` times their pace."""
    return [request._replace(arrival=request.arrival / speed) for request in requests]
