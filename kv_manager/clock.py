"""The clock of the leases, the only place where time enters."""

import asyncio
import logging

from kv_manager.core.lease import MAX_TICK_MS
from kv_manager.core.manager import Manager

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
"""Between finding a lease over and dropping its pool: messages that were readable by then are handled and renew it."""


async def follow_leases(manager: Manager) -> None:
    """Tick all leases and drop the pools whose workers are gone, until cancelled.

    A process that was stopped for long finds messages waiting when it goes on. It must not drop the pools of workers
    that did send, so a late tick counts one tick at most, and the decision falls after what can be read was handled.
    """
    loop = asyncio.get_running_loop()
    interval = min(MAX_TICK_MS, max(10, manager.lease_ms // 4)) / 1000
    last = loop.time()
    while True:
        await asyncio.sleep(interval)
        now = loop.time()
        due = manager.tick(round((now - last) * 1000))
        last = now
        if not due:
            continue
        await asyncio.sleep(SETTLE_SECONDS)
        for pool, epoch in due:
            if manager.expire(pool, epoch):
                logger.warning("pool %r dropped: its worker's stream is broken and its lease is over", pool)
