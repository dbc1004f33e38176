"""The smg gateway as its users get it: from the package index, into an environment of its own, unmodified.

python tests/support/smg_gateway.py FOLDER      makes the environment
"""

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unclaimed_port import unclaimed_port

VERSION = "1.13.0"
# Logged once the tokenizer has come from the worker; without it requests are turned away.
SERVING = "Successfully registered tokenizer"


class NotAvailable(Exception):
    """The package index does not have the package for this machine."""


def environment(folder: Path) -> Path:
    """The interpreter of the environment in ``folder``, made when it is not there: 37 MB to fetch.

    Raises:
        NotAvailable: pip could not install it; its last line.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    ready, interpreter = folder / "ready", folder / "bin" / "python"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            command = [interpreter, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", f"smg=={VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NotAvailable(done.stderr.strip().splitlines()[-1])
            ready.touch()
    return interpreter


@contextmanager
def smg_in_front_of(worker: str, interpreter: Path, seconds: float = 120.0) -> Iterator[str]:
    """smg over one worker at ``host:port``; the base URL of its OpenAI interface, when it takes requests."""
    # It cannot be asked to choose.
    port, metrics = unclaimed_port(), unclaimed_port()
    flags = {"host": "127.0.0.1", "port": port, "prometheus-port": metrics, "policy": "cache_aware"}
    command = [interpreter, "-m", "smg", "launch", "--worker-urls", f"grpc://{worker}"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
    )  # fmt: skip
    serving, lines = threading.Event(), list[str]()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(re.sub(r"\x1b\[[0-9;]*m", "", line))
            if SERVING in line:
                serving.set()
        serving.set()  # it has ended

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert serving.wait(seconds), f"smg does not serve after {seconds} s:\n{''.join(lines[-30:])}"
        assert process.poll() is None, f"smg ended:\n{''.join(lines[-30:])}"
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its own way to end takes seconds, and nothing of it is tested
        process.wait()
        reader.join(5)


if __name__ == "__main__":
    print(environment(Path(sys.argv[1])))
