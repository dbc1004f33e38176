"""What a tenant takes of this gateway, for those who run it."""

from dataclasses import dataclass
from typing import NamedTuple

from gateway.tenancy.tenant import Tenant


class Totals(NamedTuple):
    """What a tenant has taken since the gateway started, as its metrics count it."""

    calls: int = 0
    refused_requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """A tenant now.

    Attributes:
        tenant: who, and its limits.
        running_calls: calls under way, those that wait included.
        waiting_requests: requests that wait for a place at a worker.
        tokens_left: tokens that can be taken now; infinite without a limit.
        totals: since the start.
    """

    tenant: Tenant
    running_calls: int
    waiting_requests: int
    tokens_left: float
    totals: Totals
