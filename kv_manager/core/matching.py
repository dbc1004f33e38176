"""MatchPrefix: how much of a prompt each pool holds, as everyone outside may know it (design 3.2, 3.10)."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from kv_manager.core.admission import Prompt, chain_of, root_of
from kv_manager.core.errors import bad_item
from kv_manager.core.prompt_size import validate_prompt_blocks
from kv_manager.core.slices import SLICE_BLOCKS, Sliced
from kv_manager.core.validation import validate_tokens
from kv_manager.core.windows import first_visible_block
from octavo.kv.v1 import common_pb2, lookup_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

FIRST_DIGESTS = 4
"""Digests made for the first look: a prompt that nobody holds costs no more of them."""
MAX_TOLD_DIGESTS = 1 << 18
"""Digests in one answer: 8.5 MiB of them."""


class CachedStart:
    """The start of a prompt that one pool holds, found by showing it the prompt's digests in order.

    Attributes:
        blocks: the most full blocks from the prompt's start that need no computing, as far as digests were shown.
    """

    __slots__ = ("_length", "_pool", "_run", "_shown", "blocks")

    def __init__(self, pool: "Pool", length: int) -> None:
        self._pool = pool
        self._length = length
        self._shown = 0
        self._run = 0
        self.blocks = 0

    def show(self, digests: list[bytes]) -> bool:
        """Look for the next digests. Returns False when no later one can count.

        A window hides what lies before it, so there a gap is no end: k blocks count when every one of them that the
        next query sees is cached.

        block     0 ............ visible ............ k
                  | hidden      | all must be cached | computed
        """
        pool = self._pool
        holder_of = pool.blocks.first_confirmed_holder
        if pool.window is None:
            for count, digest in enumerate(digests):
                if not holder_of(digest):
                    self.blocks += count
                    return False
            self.blocks += len(digests)
            return True
        for digest in digests:
            self._shown += 1
            self._run = self._run + 1 if holder_of(digest) else 0
            query = min(self._shown * pool.block_size, self._length - 1)
            if self._run >= self._shown - first_visible_block(query, pool.window, pool.block_size):
                self.blocks = self._shown
        return True

    @property
    def tokens(self) -> int:
        """Tokens that need no computing; never the last one, whose logits are missing."""
        return min(self.blocks * self._pool.block_size, self._length - 1)


def match(
    pools: list["Pool"], request: lookup_pb2.MatchPrefixRequest, header: common_pb2.ResponseHeader
) -> Sliced[lookup_pb2.MatchPrefixResponse]:
    """Look a prompt up in ``pools``; makes one answer, with one match per pool in their order.

    Raises:
        ServiceError: INVALID_ARGUMENT; the prompt is empty, malformed or longer than can be looked up.
    """
    validate_tokens("token_ids", request.token_ids)
    prompt = Prompt(request.token_ids, root_of(request.root), chunk=len(request.token_ids))
    _validate_size(pools, prompt, request.include_digests)
    found = {pool.name: CachedStart(pool, prompt.length) for pool in pools}
    told: dict[str, list[bytes]] = {}
    for replicas in _by_world(pools):
        digests: list[bytes] = []
        asked = [found[pool.name] for pool in replicas]
        chain, count, looked_up = chain_of(replicas[0], prompt), FIRST_DIGESTS, 0
        while (part := list(islice(chain, count))) and (asked or request.include_digests):
            looked_up += len(part) * max(1, len(asked))
            if request.include_digests:
                digests += part
            asked = [start for start in asked if start.show(part)]
            count = max(FIRST_DIGESTS, min(2 * count, SLICE_BLOCKS // max(1, len(asked))))
            if looked_up >= SLICE_BLOCKS:
                looked_up = 0
                yield None
        told.update((pool.name, digests) for pool in replicas)
    response = lookup_pb2.MatchPrefixResponse(header=header)
    for pool in pools:
        match = response.matches.add(header=pool.header(), block_size=pool.block_size, digests=told[pool.name])
        match.cached_tokens = found[pool.name].tokens
        pool.fill_stats(match.stats)
    yield response


def _by_world(pools: Iterable["Pool"]) -> Iterator[list["Pool"]]:
    """Replicas of one model hash a prompt alike, so it is hashed once for all of them."""
    worlds: dict[tuple[str, int], list[Pool]] = {}
    for pool in pools:
        worlds.setdefault((pool.spec.model_fingerprint, pool.block_size), []).append(pool)
    yield from worlds.values()


def _validate_size(pools: list["Pool"], prompt: Prompt, include_digests: bool) -> None:
    for pool in pools:
        validate_prompt_blocks(pool, "token_ids", prompt.ids)
    told = sum(prompt.length // pool.block_size for pool in pools) if include_digests else 0
    if told > MAX_TOLD_DIGESTS:
        raise bad_item(
            "include_digests",
            "OUT_OF_RANGE",
            f"asks for {told} digests, must be at most {MAX_TOLD_DIGESTS}: ask fewer pools or a shorter prompt",
        )
