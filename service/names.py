"""Peers given by name: ``dns:///host:port`` stands for every address that the name resolves to, now and later."""

import asyncio
import socket

SCHEME = "dns:///"


def is_name(target: str) -> bool:
    """Whether the target stands for several addresses."""
    return target.startswith(SCHEME)


def host_of(target: str) -> str:
    """The host of a ``dns:///host:port``, empty for any other target."""
    return target.removeprefix(SCHEME).rpartition(":")[0].strip("[]") if is_name(target) else ""


async def resolve(name: str) -> frozenset[str]:
    """The addresses, ip:port, of a ``dns:///host:port``.

    Raises:
        OSError: the name cannot be resolved now.
    """
    port = name.rpartition(":")[2]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host_of(name), int(port), type=socket.SOCK_STREAM)
    except (UnicodeError, OverflowError) as error:  # no name that could be asked for, or no port
        raise OSError(str(error)) from error
    return frozenset(join(str(address[0]), int(address[1])) for *_, address in found)


def join(host: str, port: int) -> str:
    """host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
