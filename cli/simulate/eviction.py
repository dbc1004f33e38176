"""Naive models of eviction policies, to set the manager's own beside others and beside an offline optimum.

They know blocks by the trace's ids and nothing of tables, digests or steps; the manager is not involved. The model of
its own policy, LRU, finds exactly the hits that the manager finds, which tests hold.

A prompt holds all its blocks while it runs; cached are the others. A block counts as found when every one before it in
its prompt is found too. One that is cached but not found so is computed again, and its older copy forgotten.
"""

import heapq
import math
import random
from collections.abc import Sequence
from typing import Protocol

from cli.simulate.traces import MOONCAKE_BLOCK, Prompt

Key = tuple[float, ...]


class Policy(Protocol):
    """Orders cached blocks: the one with the least key goes first."""

    def key(self, block: int, time: int, depth: int, found: bool) -> Key:
        """A block's key when its prompt lets go of it.

        Args:
            time: the prompt's place in the trace.
            depth: the block's place in the prompt.
            found: it was cached before.
        """


class Lru:
    """Least recently used first, within a prompt its end first: what the manager does."""

    def key(self, block: int, time: int, depth: int, found: bool) -> Key:
        """As ``Policy``."""
        return (time, -depth)


class Fifo:
    """First come, first gone: being found changes nothing."""

    def __init__(self) -> None:
        self._entered: dict[int, Key] = {}

    def key(self, block: int, time: int, depth: int, found: bool) -> Key:
        """As ``Policy``."""
        if not found:
            self._entered[block] = (time, -depth)
        return self._entered[block]


class Lfu:
    """Least often used first since it came; of equals the least recently used."""

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}

    def key(self, block: int, time: int, depth: int, found: bool) -> Key:
        """As ``Policy``."""
        self._uses[block] = self._uses[block] + 1 if found else 1
        return (self._uses[block], time, -depth)


class Randomly:
    """Any, all alike."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(f"{seed} eviction")

    def key(self, block: int, time: int, depth: int, found: bool) -> Key:
        """As ``Policy``."""
        return (self._dice.random(),)


class Belady:
    """The one whose next use is furthest in the future first, of equals the deepest.

    No policy that holds running prompts whole finds more: keeping a block from one use to the next is an interval that
    takes a place meanwhile, and dropping the interval that ends last leaves room for the most others. A block is never
    used without those before it, so what is kept is always found.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._next: list[list[float]] = []
        upcoming: dict[int, int] = {}
        for time in reversed(range(len(prompts))):
            blocks = _full(prompts[time])
            self._next.append([upcoming.get(block, math.inf) for block in blocks])
            upcoming.update(dict.fromkeys(blocks, time))
        self._next.reverse()

    def key(self, block: int, time: int, depth: int, found: bool) -> Key:
        """As ``Policy``."""
        return (-self._next[time][depth], -depth)


def policies(prompts: Sequence[Prompt], seed: int) -> dict[str, Policy]:
    """All of them, each to be used for one run."""
    return {"LRU": Lru(), "FIFO": Fifo(), "LFU": Lfu(), "random": Randomly(seed), "Belady": Belady(prompts)}


def count_hits(prompts: Sequence[Prompt], capacity: int, policy: Policy) -> int:
    """Full blocks found at the starts of prompts, in a pool of ``capacity`` blocks."""
    cached: dict[int, Key] = {}
    order: list[tuple[Key, int]] = []
    hits = 0
    for time, prompt in enumerate(prompts):
        if prompt.request.prompt_tokens // MOONCAKE_BLOCK + 1 > capacity:
            continue  # with its next token it outgrows the pool
        blocks = _full(prompt)
        found = next((depth for depth, block in enumerate(blocks) if block not in cached), len(blocks))
        hits += found
        for block in blocks:
            cached.pop(block, None)
        while len(cached) > capacity - len(prompt.blocks):
            key, block = heapq.heappop(order)
            if cached.get(block) == key:
                del cached[block]
        for depth in reversed(range(len(blocks))):
            block = blocks[depth]
            cached[block] = key = policy.key(block, time, depth, depth < found)
            heapq.heappush(order, (key, block))
    return hits


def _full(prompt: Prompt) -> tuple[int, ...]:
    return prompt.blocks[: prompt.full_blocks]
