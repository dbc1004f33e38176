"""Work in slices: what may take long stops now and then, so that steps are served in between.

A slice is counted in blocks looked at, never in time.
"""

from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")

Sliced = Iterator[Item | None]
"""What the work has made, and None wherever it stops without having made anything."""

SLICE_BLOCKS = 128
"""Blocks hashed, looked up or described per slice: about 0.3 ms."""


def at_once(work: Sliced[Item]) -> list[Item]:
    """Everything the work makes, without letting anybody in between."""
    return [item for item in work if item is not None]
