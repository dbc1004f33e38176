"""What a process tells its parent, and what it hears of it."""

import ctypes
import json
import os
import signal
import sys

PARENT_VARIABLE = "OCTAVO_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def announce_ready(service: str, grpc: str, **more: object) -> None:
    """Print the ready line: one JSON object on stdout, read by ``octavo serve`` and by tests."""
    sys.stdout.write(json.dumps({"event": "ready", "service": service, "grpc": grpc, **more}) + "\n")
    sys.stdout.flush()


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
