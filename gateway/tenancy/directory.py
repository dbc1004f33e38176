"""The tenants of now: read from the file at the start, and again when it changes or at SIGHUP."""

import asyncio
import contextlib
import logging
import signal
from pathlib import Path

from gateway.tenancy.keys import KeyIndex
from gateway.tenancy.tenant import ANONYMOUS, Tenant
from gateway.tenancy.tenants_file import read_tenants
from service.settings import SettingsError

logger = logging.getLogger(__name__)

LOOK_EVERY_SECONDS = 2.0

# What changes when a file is written, replaced, or reached by another symbolic link.
_Version = tuple[int, int, int]


class Directory:
    """Finds tenants by their keys.

    Args:
        path: the tenants file; None lets everybody in as the anonymous tenant.

    Attributes:
        tenants: all of them.

    Raises:
        SettingsError: the file cannot be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._version = self._look()
        self.tenants: tuple[Tenant, ...] = (ANONYMOUS,) if path is None else read_tenants(path)
        self._index = KeyIndex(self.tenants)
        self._asked = asyncio.Event()

    @property
    def open(self) -> bool:
        """Whether calls need no key."""
        return self._path is None

    def find(self, key: str) -> Tenant | None:
        """The tenant of a key, None when nobody has it."""
        return self._index.find(key)

    async def watch(self) -> None:
        """Follow the file until cancelled. One that cannot be used changes nothing and is told as an error."""
        if self._path is None:
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._asked.set)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_SECONDS):
                        await self._asked.wait()
                await self.refresh()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    async def refresh(self) -> None:
        """Read the file again if it was asked for or the file has changed."""
        asked, version = self._asked.is_set(), self._look()
        self._asked.clear()
        if self._path is None or not (asked or version != self._version):
            return
        self._version = version
        try:
            tenants = await asyncio.to_thread(read_tenants, self._path)
        except SettingsError as error:
            logger.error("the tenants stay as they were: %s", error)
            return
        self.tenants, self._index = tenants, KeyIndex(tenants)
        logger.info("%d tenants read from %s", len(tenants), self._path)

    def _look(self) -> _Version | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
