"""Variables that a service does not know though they begin as its settings do: told of in its log, not refused.

A file is one service's own, and its unknown keys are errors. The environment is not: Kubernetes writes every Service of
a namespace into it, and one named ``octavo-gateway`` begins as the gateway's settings do.
"""

import difflib
import logging
import re
from collections.abc import Collection, Iterable

WORKER_ADDRESS = "OCTAVO_WORKER_ADDRESS"
"""Where the commands find a worker: no setting of the worker's."""

_INJECTED = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_\w+)")
"""What Kubernetes writes for a Service NAME: NAME_SERVICE_HOST, NAME_SERVICE_PORT_GRPC, NAME_PORT_50050_TCP_ADDR."""
_NEAR = 0.7
"""Of a name's letters, the share that a near miss has in place; below, guesses mislead more than they help."""

logger = logging.getLogger(__name__)


def unknown_variables(names: Iterable[str], prefix: str, known: Collection[str]) -> list[str]:
    """Those that begin with ``prefix``, in whatever case, and are neither ``known`` nor injected; sorted."""
    return sorted(
        name
        for name in names
        if name.upper().startswith(prefix)
        and name not in known
        and name != WORKER_ADDRESS
        and not _INJECTED.fullmatch(name.upper())
    )


def warn_of_unknown(names: Iterable[str], prefix: str, known: Collection[str]) -> None:
    """Log a warning for each of ``unknown_variables``: its name and the setting it nearly is, never its value.

    Args:
        names: of the variables of the environment, spelled as the service reads them.
        prefix: what the service's settings begin with, ``OCTAVO_KV_``.
        known: the variables of its settings.
    """
    # Without the prefix, which all have in common and which would make any two of them alike.
    settings = {name.removeprefix(prefix): name for name in known}
    for name in unknown_variables(names, prefix, known):
        near = difflib.get_close_matches(name.upper().removeprefix(prefix), settings, n=1, cutoff=_NEAR)
        guess = f": is {settings[near[0]]} meant?" if near else ""
        logger.warning("%s is no setting and does nothing%s", name, guess)
