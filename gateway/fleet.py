"""The workers that there are, while they come and go.

Several sources name workers: the settings, DNS names, and workers that announce themselves. A worker is there as long
as one source names its address.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from gateway.routing import Router
from gateway.watching import watching
from gateway.workers import Changed, Worker
from service.names import host_of

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 1.0


class Fleet:
    """Keeps a router's workers to what the sources name. Belongs to the event loop.

    Args:
        router: routes to them.
        make_worker: a worker at an address, of the host name that brought it; empty where the address came by itself.
        changed: awaited whenever a worker's state changed, or one has gone.
    """

    def __init__(self, router: Router, make_worker: Callable[[str, str], Worker], changed: Changed) -> None:
        self._router = router
        self._make_worker = make_worker
        self._changed = changed
        self._named: dict[str, tuple[str, ...]] = {}
        self._here: dict[str, tuple[Worker, asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def name(self, source: str, addresses: Collection[str]) -> None:
        """What a source names from now on, in place of what it named before."""
        self._named[source] = tuple(addresses)
        wanted = dict.fromkeys(address for named in self._named.values() for address in named)
        for address in wanted:
            if address not in self._here:
                self._come(address, source)
        gone = [address for address in self._here if address not in wanted]
        for address in gone:
            self._leave(address, source)
        if gone:
            await self._changed()

    async def close(self) -> None:
        """Let go of all workers."""
        watchers = [watcher for _, watcher in self._here.values()]
        for task in (*watchers, *self._leaving):
            task.cancel()
        await asyncio.gather(*watchers, *self._leaving, return_exceptions=True)
        for worker, _ in self._here.values():
            await worker.close()

    def _come(self, address: str, source: str) -> None:
        try:
            worker = self._make_worker(address, host_of(source))
        except OSError as error:  # certificates are being replaced: whoever named the worker names it again
            logger.error("worker %s cannot be called: %s", address, error, extra={"source": source})
            return
        self._here[address] = worker, watching(worker.watch(self._changed))
        self._router.add(worker)
        logger.info("worker %s came", address, extra={"source": source})

    def _leave(self, address: str, source: str) -> None:
        worker, watcher = self._here.pop(address)
        self._router.remove(worker)
        logger.info("worker %s left", address, extra={"source": source})
        task = watching(_see_off(worker, watcher))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def _see_off(worker: Worker, watcher: "asyncio.Task[None]") -> None:
    """Nothing new is sent there. What runs goes on and is watched: the requests of a frozen worker have to move."""
    try:
        while True:
            if worker.workload.idle:
                return
            await asyncio.sleep(LEAVE_SECONDS)
    finally:
        watcher.cancel()
        await worker.close()
