"""A tenant: whose prefixes it shares, and what it may take."""

import math
from dataclasses import dataclass, field

from gateway.parameters import INT32_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may take from one gateway; infinity and None are no limit.

    Attributes:
        requests_per_second: calls, refilled continuously.
        burst: calls that may come at once after a silence.
        concurrent_requests: calls under way, those that wait included.
        tokens_per_minute: tokens of prompts and answers, refilled continuously; one minute's worth may come at once.
        max_prompt_tokens: the longest prompt.
        max_tokens: the longest answer.
        queued_requests: the most requests that wait for a place at the workers of one model.
    """

    requests_per_second: float = math.inf
    burst: float = math.inf
    concurrent_requests: float = math.inf
    tokens_per_minute: float = math.inf
    max_prompt_tokens: int | None = None
    max_tokens: int | None = None
    queued_requests: float = math.inf


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of the file, or the one that stands for everybody when there is no file.

    Attributes:
        name: in metrics and logs.
        digest_root: ``PrefixRoot.tenant`` of its requests; prefixes of different roots never match.
        key_digests: SHA-256 of its API keys.
        weight: its share of the workers beside other tenants that wait.
        best_priority: the smallest priority with which its requests go to a worker, where priorities rank requests of
            all tenants; a smaller one orders only among its own here.
        operator: whether it may see what all tenants take, and drain the gateway.
        limits: what it may take.
    """

    name: str
    digest_root: str
    key_digests: frozenset[bytes] = field(default=frozenset(), repr=False)
    weight: float = 1.0
    best_priority: int = 0
    operator: bool = False
    limits: Limits = Limits()


# The root and the priorities of a gateway that knows no tenants: what it sent before it knew any.
ANONYMOUS = Tenant("anonymous", digest_root="", best_priority=-INT32_MAX - 1, operator=True)
