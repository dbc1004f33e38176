"""The services of a command that a page shows, such as `octavo serve`: on ports that are free, until Ctrl-C."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

LISTENERS = ("port", "http-port", "worker-port", "manager-port", "worker-metrics-port", "manager-metrics-port")
"""The command's flags for ports, each of which takes 0 for a free one."""


@contextmanager
def serving(command: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Run it. Yields what its ready line says, addresses by the services' names.

    Args:
        environ: variables beside those of this process.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(environ or {})},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process:
        ready = next((line for line in process.stdout if line.startswith("{")), None)
        assert ready is not None, f"{command[0]} ended with {process.wait()}"
        try:
            yield dict(re.findall(r'"(\w+)": "([^"]*)"', ready))
        finally:  # else the process, which is waited for, would outlive a test that fails
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does in a terminal
            process.wait(60)
