"""Workers that announce themselves: who did, until when, and the call by which they do."""

import asyncio
import contextlib
import hmac
import re
import time
import urllib.parse
from typing import Any, NamedTuple

import grpc

from gateway.fleet import Fleet
from octavo.gateway.v1 import registry_pb2, registry_pb2_grpc
from service.errors import ServiceError, invalid_argument

SERVICE = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"].full_name
SOURCE = "announced"
TOKEN_KEY = "authorization"
LOOK_EVERY_SECONDS = 0.5
MAX_ADDRESS_CHARACTERS = 256
MAX_WORKER_ID_CHARACTERS = 128
MAX_WORKERS = 4096

# A name, or a number, of IPv6 in brackets. Nothing that gRPC would read as the address of something else: a socket in
# the file system, a name server to ask.
_ADDRESS = re.compile(r"(?P<host>[\w.-]*|\[[\w:.%-]+\]):(?P<port>\d{1,5})", re.ASCII)


class _Lease(NamedTuple):
    """Which process is announced, and until when."""

    worker_id: str
    until: float


class Leases:
    """Who is announced, and until when. Time comes in as an argument, in seconds of a monotonic clock.

    Args:
        seconds: how long an announcement counts.

    Attributes:
        seconds: as given.
        changed: set when somebody came or left.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.changed = asyncio.Event()
        self._held: dict[str, _Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, address: str) -> bool:
        return address in self._held

    def renew(self, address: str, worker_id: str, now: float) -> None:
        if address not in self._held:
            self.changed.set()
        self._held[address] = _Lease(worker_id, now + self.seconds)

    def end(self, address: str, worker_id: str) -> None:
        """End a worker's own lease: one that took its address meanwhile keeps its."""
        held = self._held.get(address)
        if held is not None and held.worker_id == worker_id:
            del self._held[address]
            self.changed.set()

    def alive(self, now: float) -> tuple[str, ...]:
        """The addresses in the order of their announcement; those whose lease is over are forgotten."""
        self._held = {address: lease for address, lease in self._held.items() if now < lease.until}
        return tuple(self._held)


async def follow(fleet: Fleet, leases: Leases) -> None:
    """Name the announced workers until cancelled."""
    while True:
        leases.changed.clear()
        await fleet.name(SOURCE, leases.alive(time.monotonic()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_SECONDS):
                await leases.changed.wait()


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """``octavo.gateway.v1.RegistryService``.

    Args:
        leases: gains and loses the announced workers.
        token: what announcements have to carry.
    """

    def __init__(self, leases: Leases, token: str) -> None:
        self._leases = leases
        self._expected = f"Bearer {token}".encode()

    async def Register(self, request: registry_pb2.RegisterRequest, context: Any) -> registry_pb2.RegisterResponse:
        self._check(dict(context.invocation_metadata() or ()).get(TOKEN_KEY, ""))
        address = understood(request.address, context.peer())
        if len(request.worker_id) > MAX_WORKER_ID_CHARACTERS:
            raise invalid_argument("worker_id", f"allowed are at most {MAX_WORKER_ID_CHARACTERS} characters")
        if request.leaving:
            self._leases.end(address, request.worker_id)
            return registry_pb2.RegisterResponse(address=address)
        if address not in self._leases and len(self._leases) >= MAX_WORKERS:
            message = f"{MAX_WORKERS} workers are announced already"
            raise ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, reason="TOO_MANY_WORKERS")
        self._leases.renew(address, request.worker_id, time.monotonic())
        return registry_pb2.RegisterResponse(address=address, lease_ms=round(self._leases.seconds * 1000))

    def _check(self, said: str | bytes) -> None:
        given = said if isinstance(said, bytes) else said.encode()
        if not hmac.compare_digest(given, self._expected):
            message = "announcing a worker takes the operator's token: authorization: Bearer <token>"
            raise ServiceError(grpc.StatusCode.UNAUTHENTICATED, message, reason="WRONG_TOKEN")


def understood(address: str, peer: str) -> str:
    """An announced address, with the caller's own where its host is empty.

    Args:
        address: as in ``RegisterRequest``.
        peer: the caller as gRPC names it: ``ipv4:10.0.0.7:41234``, ``ipv6:%5B::1%5D:41234``.

    Raises:
        ServiceError: INVALID_ARGUMENT, it is no address.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or len(address) > MAX_ADDRESS_CHARACTERS or not 0 < int(match["port"]) < 65536:
        raise invalid_argument("address", "host:port is needed, with a port from 1 to 65535")
    if match["host"]:
        return address
    family, _, place = urllib.parse.unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        raise invalid_argument("address", "a host is needed: the call comes from no internet address")
    return f"{place.rpartition(':')[0]}:{match['port']}"
