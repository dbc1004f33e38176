"""Ports for who must be told one, or comes back to it: a service that was killed, another project's program."""

import random
import socket
from pathlib import Path

# What the system gives to those who ask for any port, its first and its last one.
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, TRIES = 10_000, 100


def unclaimed_port() -> int:
    """A port of 127.0.0.1 that nobody has, and that the system gives to nobody who asks for any.

    One that the system chose itself may go to another process in every moment in which nobody listens there.
    """
    first = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else LOWEST
    places = range(LOWEST, max(LOWEST, first))
    # Where nothing is left to choose from, 0: the system's choice is all there is.
    for port in [*random.SystemRandom().sample(places, min(TRIES, len(places))), 0]:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("127.0.0.1 has no free port")
