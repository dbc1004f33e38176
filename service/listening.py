"""Addresses to listen on, and the one line for an address that is not to be had."""

import errno
import os
import socket

# With these gRPC cannot bind either. Of anything else it may know better: a machine without IPv6, schemes of its own.
REFUSALS = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)


def cannot_listen(listen: str, error: OSError, flag: str) -> OSError:
    """What to say of an address that cannot be bound.

    Args:
        listen: host:port.
        error: what binding it raised.
        flag: the setting that names another one.
    """
    # Libraries put the address into their own words; a name that cannot be resolved has a number of another kind.
    plain = error.errno is not None and error.errno > 0 and not isinstance(error, socket.gaierror)
    reason = os.strerror(error.errno) if plain and error.errno is not None else error.strerror or str(error)
    return OSError(f"cannot listen on {listen}: {reason.lower()}; choose another {flag}")


def check_free(listen: str, flag: str) -> None:
    """Refuse a host:port that gRPC could not bind: its core writes lines of its own about it, and no reason here.

    A name may have several addresses, and one of them is enough.

    Raises:
        OSError: the line for it.
    """
    if listen.startswith(("ipv4:", "ipv6:")):
        return
    host, _, port = listen.removeprefix("dns:///").rpartition(":")
    refused: OSError | None = None
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
                return
            except OSError as error:
                if error.errno not in REFUSALS:
                    return
                refused = error
    except (OSError, UnicodeError) as error:  # no name that could be asked for
        refused = error if isinstance(error, OSError) else OSError(str(error))
    if refused is not None:
        raise cannot_listen(listen, refused, flag) from refused
