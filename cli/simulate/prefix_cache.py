"""How much of a trace's prompts the manager's prefix cache gives back, by the size of its pool.

Prompts come one after another in the order of the trace, and each is released before the next: so a pool's blocks are
all there for the cache, but for those of one prompt. Generated tokens are left out, for a trace does not say which.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cli.failures import CliError
from cli.simulate.manager_port import AttachedPool, ManagerPort
from cli.simulate.traces import MOONCAKE_BLOCK, Prompt
from octavo.kv.v1 import steps_pb2

TOKEN = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Hits:
    """What a run found cached.

    Attributes:
        references: full blocks of all prompts.
        hits: those found, at the starts of prompts.
        rejected: prompts that outgrow the pool; their blocks count as references.
        prompt_tokens: of all prompts.
    """

    references: int
    hits: int
    rejected: int
    prompt_tokens: int

    @property
    def rate(self) -> float:
        """Hits of references, 0 to 1."""
        return self.hits / max(1, self.references)


def replay(
    port: ManagerPort,
    prompts: Sequence[Prompt],
    num_blocks: int = 0,
    padded: bool = False,
    advance: Callable[[], object] = lambda: None,
) -> Hits:
    """Show all prompts to a pool of the manager behind ``port``.

    Args:
        num_blocks: of the pool; 0 for as many as never evict.
        padded: fill every prompt's last block, so that it can be found too.
        advance: called after each prompt.

    Raises:
        CliError: the manager's counters differ from those kept here, or its invariants do not hold.
    """
    pool = AttachedPool(port, num_blocks or enough_blocks(prompts), MOONCAKE_BLOCK)
    references = hits = tokens = cached = rejected = lookups = 0
    try:
        request = pool.request()
        for seq, prompt in enumerate(prompts, start=1):
            ids = token_ids(prompt, padded)
            length = len(ids) // TOKEN.size
            request.admits.add(seq=seq, token_ids=ids, num_tokens=length, arrival=seq)
            response = pool.answer(request)
            request = pool.request()
            tokens += length
            references += length // MOONCAKE_BLOCK
            if response.rejected:
                rejected += 1
            else:
                (grant,) = response.grants
                hits += grant.hit_blocks
                cached += grant.cached_tokens
                lookups += length
                request.releases.add(seq=seq, reason=steps_pb2.RELEASE_REASON_FINISHED)
            advance()
        pool.answer(request)
        totals = pool.summary().totals
        counted = (totals.lookup_tokens, totals.hit_tokens, totals.rejected_sequences)
        if counted != (lookups, cached, rejected):
            raise CliError(f"the manager counted {counted}, the simulator {(lookups, cached, rejected)}")
        if violations := pool.violations():
            raise CliError(f"the manager's invariants do not hold: {'; '.join(violations)}")
    finally:
        pool.close()
    return Hits(references, hits, rejected, tokens)


def enough_blocks(prompts: Sequence[Prompt]) -> int:
    """Blocks that hold every distinct one and, beside them, the longest prompt and a token."""
    distinct = {block for prompt in prompts for block in prompt.blocks}
    return len(distinct) + max((len(prompt.blocks) for prompt in prompts), default=0) + 1


def token_ids(prompt: Prompt, padded: bool) -> bytes:
    """Ids that are equal where the trace says so: each block repeats the number that the trace gives it."""
    whole = b"".join([TOKEN.pack(block) * MOONCAKE_BLOCK for block in prompt.blocks])
    return whole if padded else whole[: prompt.request.prompt_tokens * TOKEN.size]
