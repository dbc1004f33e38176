"""How a worker is chosen among those that can serve a request."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.prefix_lookup import PoolView, PrefixLookup
from gateway.routing_cost import Candidate, cheapest, least_loaded
from gateway.settings import GatewaySettings
from gateway.workers import Worker
from gateway.workload import IDS_AT_ONCE, SAMPLE_TOKENS, chain_of, to_bytes
from octavo.kv.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request as routing sees it.

    Attributes:
        token_ids: what the worker will be sent.
        root: the prefix root it will have there.
    """

    token_ids: Sequence[int]
    root: common_pb2.PrefixRoot


class Choice(NamedTuple):
    """A worker, and what the request is expected to take there.

    Attributes:
        worker: the chosen one.
        prompt_tokens: tokens that it has to compute before the first one it generates.
        chain: the prompt's links, for those that come after it.
    """

    worker: Worker
    prompt_tokens: int
    chain: tuple[bytes, ...] = ()


class Policy(Protocol):
    """Chooses."""

    async def choose(self, workers: Sequence[Worker], wanted: Wanted) -> Choice:
        """One of the workers, of which there is at least one."""
        ...


class RoundRobin:
    """Each worker in turn."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    async def choose(self, workers: Sequence[Worker], wanted: Wanted) -> Choice:
        return Choice(workers[next(self._turns) % len(workers)], len(wanted.token_ids))


class LeastLoad:
    """The worker that has least to compute for others."""

    async def choose(self, workers: Sequence[Worker], wanted: Wanted) -> Choice:
        candidates = [Candidate(worker, 0, worker.workload.tokens) for worker in workers]
        return Choice(least_loaded(candidates).place, len(wanted.token_ids))


class PrefixAware:
    """The worker that serves the request at the least cost, knowing what each one's pool holds of its prompt.

    Where no manager answers, the prompts that are under way from here are all that is known.
    """

    def __init__(self, lookup: PrefixLookup, prefix_weight: float) -> None:
        self._lookup = lookup
        self._weight = prefix_weight

    async def choose(self, workers: Sequence[Worker], wanted: Wanted) -> Choice:
        if len(wanted.token_ids) <= IDS_AT_ONCE:
            token_bytes, chain = _digested(wanted)
        else:
            token_bytes, chain = await asyncio.to_thread(_digested, wanted)
        views = await self._lookup.views(token_bytes, wanted.root) if token_bytes and len(workers) > 1 else {}
        candidates = [_candidate(worker, views.get(worker.pool), chain) for worker in workers]
        best = cheapest(candidates, len(wanted.token_ids), self._weight)
        return Choice(best.place, max(1, len(wanted.token_ids) - best.cached_tokens), chain)


def _digested(wanted: Wanted) -> tuple[bytes, tuple[bytes, ...]]:
    token_bytes = to_bytes(wanted.token_ids)
    return token_bytes, chain_of(wanted.root.SerializeToString(deterministic=True), token_bytes)


def policy_of(settings: GatewaySettings, lookup: PrefixLookup) -> Policy:
    """The policy of the settings."""
    if settings.routing == "round-robin":
        return RoundRobin()
    if settings.managers and settings.routing in ("auto", "prefix"):
        return PrefixAware(lookup, settings.routing_prefix_weight)
    return LeastLoad()


def _candidate(worker: Worker, view: PoolView | None, chain: Sequence[bytes]) -> Candidate[Worker]:
    workload = worker.workload
    shared = workload.shared_tokens(chain)
    if view is None:
        return Candidate(worker, shared, workload.tokens)
    # Samples that hold blocks and did not come from here: other gateways', or those of clients of the worker itself.
    others = max(0, view.running_sequences - workload.samples)
    load = workload.tokens + others * SAMPLE_TOKENS
    return Candidate(worker, max(shared, view.cached_tokens), load, view.free_blocks)
