"""What an attention mask of transformers says, read off the function it would be made from."""

from collections.abc import Callable
from typing import Any

import torch

# Far more than any window or chunk, and once one less than a power of two, as chunks are, and once not.
_QUERIES = (2**17 - 1, 2**17 - 998)


class MaskError(ValueError):
    """A mask that no window describes. The message completes a sentence about the model."""


def window_of(mask_function: Callable[..., Any]) -> int | None:
    """The sliding window of a causal mask; None when a query sees all before it.

    Raises MaskError for any other mask: with chunks, say, how far a query sees depends on where it stands.
    """
    reaches = {_reach(mask_function, query) for query in _QUERIES}
    if len(reaches) != 1:
        raise MaskError("attends in chunks")
    return reaches.pop()


def _reach(mask_function: Callable[..., Any], query: int) -> int | None:
    """How many tokens the query sees, itself included; None for all."""
    zero, keys = torch.zeros((), dtype=torch.int64), torch.arange(query + 2)
    try:
        seen = torch.as_tensor(mask_function(zero, zero, torch.tensor(query), keys)).expand(query + 2)
    except (IndexError, TypeError, RuntimeError) as error:
        raise MaskError("has a mask that depends on more than positions") from error
    first = int(seen.int().argmax())
    if not bool(seen[first : query + 1].all()) or bool(seen[query + 1]):
        raise MaskError("has a mask that is neither causal nor a sliding window")
    return None if first == 0 else query + 1 - first
