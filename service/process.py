"""What a process tells its parent, and what it hears of it."""

import contextlib
import ctypes
import json
import logging
import os
import resource
import signal
import sys
from typing import TextIO, cast

logger = logging.getLogger(__name__)

PARENT_VARIABLE = "OCTAVO_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def announce_ready(service: str, grpc: str, **more: object) -> None:
    """Print the ready line: one JSON object on stdout, read by ``octavo serve`` and by tests.

    Where it cannot be written, on a full disk or with stdout closed, nobody waits for it, and serving goes on.
    """
    line = json.dumps({"event": "ready", "service": service, "grpc": grpc, **more}) + "\n"
    if cast("TextIO | None", sys.stdout) is None:
        return
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it is tried again at the end
        logger.warning("the ready line cannot be written to stdout: %s", error.strerror or error)


def raise_open_files() -> None:
    """Let this process open as many files as it may ever: each connection takes one, and shells allow 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # what may be had without a bound the kernel bounds all the same
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def follow_parent() -> None:
    """Get SIGTERM when the parent dies, if the parent asked for it by setting ``OCTAVO_PARENT_PID``.

    A supervisor killed by SIGKILL cannot clean up; the kernel does it for it (Linux only, no effect elsewhere).
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent died before the call above
        raise SystemExit(f"parent process {parent} is gone")
