"""A manager process for benchmarks, on a core of its own when asked for."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[1]


@contextmanager
def manager_process(*flags: str, core: int | None = None) -> Iterator[tuple[str, psutil.Process]]:
    """``python -m kv_manager`` without metrics: its gRPC address and the process. It is stopped at the end."""
    listen = [] if any(flag.startswith("--listen") for flag in flags) else ["--listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "kv_manager", *listen, "--metrics", "", "--log-level", "warning", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the manager did not start")
            if core is not None:
                for thread in psutil.Process(process.pid).threads():
                    os.sched_setaffinity(thread.id, {core})
            yield str(json.loads(line)["grpc"]), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(20)
