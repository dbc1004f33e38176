"""Tasks that are to run as long as what they watch: nobody waits for them, so nobody else would hear of a failure."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


def watching(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Such a task; when it fails the log says so, at once."""
    task = asyncio.create_task(work)
    task.add_done_callback(_report)
    return task


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a watcher failed: what it follows is followed no more", exc_info=error)
