"""``python -m cli.embedded_worker [KV MANAGER'S FLAGS] -- [MODEL WORKER'S FLAGS]``: both in one process.

Prints two ready lines, the manager's and the worker's. Each side reads its settings as it does alone.
"""

import os
import sys
from collections.abc import Sequence

# As in model_worker: read when torch loads its OpenMP library.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from kv_manager.settings import PREFIX, Settings
from model_worker import settings as worker_settings
from service import logs
from service.process import announce_ready, follow_parent
from service.settings import load, warn_of_variables

SEPARATOR = "--"
TABLE = "kv_manager"


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    follow_parent()
    ours, theirs = _split(list(arguments))
    manager_settings = load(Settings, program="cli.embedded_worker", table=TABLE, prefix=PREFIX, arguments=ours)
    chosen = worker_settings.load(theirs)
    logs.set_up("model_worker", chosen.log_level)
    warn_of_variables(Settings, PREFIX)

    from cli.embedded_manager import EmbeddedManager, InProcessManagerClient
    from model_worker import start

    try:
        with EmbeddedManager(manager_settings) as embedded:
            announce_ready("kv_manager", embedded.address)
            # What is asked of the manager beside the steps goes by gRPC, as from everyone else.
            reachable = chosen.model_copy(update={"manager": embedded.address})
            return start.run(reachable, InProcessManagerClient(embedded.manager))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if SEPARATOR not in arguments:
        return [], arguments
    at = arguments.index(SEPARATOR)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
