"""What every page and call of the HTTP surface shares."""

import asyncio
import time
from dataclasses import dataclass, field

from gateway.metrics import Metrics
from gateway.migration import Migrations
from gateway.routing import Router
from gateway.settings import GatewaySettings
from gateway.tenancy.gate import Gate


@dataclass(slots=True, eq=False)
class Surface:
    """The gateway behind the pages; made inside the event loop that serves them.

    Attributes:
        router: finds models and workers.
        settings: limits.
        metrics: counts calls.
        migrations: has requests go on where their worker is gone.
        gate: lets calls in.
        started: when the gateway started, in seconds since 1970.
        draining: whether new generations are refused.
        cut_off: done when the drain's grace is over: what still runs ends.
    """

    router: Router
    settings: GatewaySettings
    metrics: Metrics
    migrations: Migrations
    gate: Gate
    started: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    cut_off: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
