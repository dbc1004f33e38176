"""Workers given by a DNS name: all addresses it resolves to, asked for again and again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from gateway.fleet import Fleet
from service import names

logger = logging.getLogger(__name__)

SETTINGS = "settings"

Resolve = Callable[[str], Awaitable[Collection[str]]]


async def follow(fleet: Fleet, targets: Sequence[str], every_seconds: float, resolve: Resolve = names.resolve) -> None:
    """Name the targets' workers: a plain address once, a ``dns:///host:port`` until cancelled.

    Args:
        fleet: the workers.
        targets: as in the setting ``workers``.
        every_seconds: between two looks at a name.
        resolve: the addresses of a name; an OSError means that it cannot tell now.
    """
    await fleet.name(SETTINGS, [target for target in targets if not names.is_name(target)])
    await asyncio.gather(
        *(_follow(fleet, target, every_seconds, resolve) for target in targets if names.is_name(target))
    )


async def _follow(fleet: Fleet, name: str, every_seconds: float, resolve: Resolve) -> None:
    """A name that cannot be resolved keeps the addresses it had: whether they serve, their health says."""
    lost = ""
    while True:
        try:
            addresses = sorted(await resolve(name))
        except OSError as error:
            if str(error) != lost:
                logger.warning("%s cannot be resolved, its workers stay as they are: %s", name, error)
            lost = str(error)
        else:
            lost = ""
            await fleet.name(name, addresses)
        await asyncio.sleep(every_seconds)
