"""Announces the worker to gateways, again and again: each remembers it for a lease's time."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

import grpc
import grpc.aio

from octavo.gateway.v1 import registry_pb2, registry_pb2_grpc
from service import names
from service.channels import TlsFiles, open_aio_channel

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
RETRY_SECONDS = 1.0
# Hosts that stand for every interface: the gateway takes the address that the call comes from.
WILDCARDS = ("0.0.0.0", "[::]", "*", "")


def announced_address(advertise: str, listening: str) -> str:
    """What gateways are told: the setting, or where the server listens, without a host that means everywhere."""
    if advertise:
        return advertise
    host, _, port = listening.rpartition(":")
    return f":{port}" if host in WILDCARDS else listening


class Announcer:
    """Keeps this worker announced. Belongs to the event loop.

    Args:
        gateways: host:port, or ``dns:///host:port`` for all addresses of a name.
        address: where gateways reach the worker.
        worker_id: the identity of this process.
        token: what the gateways want to hear.
        tls: the way to them.

    Raises:
        OSError: a TLS file cannot be read.
    """

    def __init__(
        self, gateways: Sequence[str], address: str, worker_id: str, token: str, tls: TlsFiles | None = None
    ) -> None:
        self._gateways = gateways
        self._request = registry_pb2.RegisterRequest(address=address, worker_id=worker_id)
        self._metadata = (("authorization", f"Bearer {token}"),)
        if tls is not None:
            tls.read()  # now, not at the first announcement
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._troubles: dict[str, str] = {}

    async def run(self) -> None:
        """Announce until cancelled, to each gateway three times per lease."""
        while self._gateways:
            gateways = await self._addresses()
            await self._keep_channels(gateways)
            leases = await asyncio.gather(*(self._tell(gateway, self._request) for gateway in self._channels))
            await asyncio.sleep(min((lease / 3 for lease in leases if lease), default=RETRY_SECONDS))

    async def leave(self) -> None:
        """Say that no more requests are wanted; those who do not hear it find out by the lease."""
        request = registry_pb2.RegisterRequest(
            address=self._request.address, worker_id=self._request.worker_id, leaving=True
        )
        await asyncio.gather(*(self._tell(gateway, request) for gateway in self._channels))
        await self._keep_channels({})

    async def _addresses(self) -> dict[str, str]:
        """The gateways' addresses, each with the name that its certificate is for: empty for the address's own host."""
        found: dict[str, str] = {}
        for gateway in self._gateways:
            if not names.is_name(gateway):
                found[gateway] = ""
                continue
            try:
                found |= dict.fromkeys(sorted(await names.resolve(gateway)), names.host_of(gateway))
                self._troubles.pop(gateway, None)
            except OSError as error:
                self._note(gateway, f"cannot be resolved: {error}")
        return found

    async def _keep_channels(self, gateways: Mapping[str, str]) -> None:
        for gateway, name in gateways.items():
            if gateway in self._channels:
                continue
            try:
                self._channels[gateway] = open_aio_channel(gateway, self._tls, verified_as=name)
            except OSError as error:  # certificates are being replaced: it is tried again with the next announcement
                self._note(gateway, f"cannot be called: {error}")
        for gateway in self._channels.keys() - set(gateways):
            await self._channels.pop(gateway).close()

    async def _tell(self, gateway: str, request: registry_pb2.RegisterRequest) -> float:
        """Seconds of the lease, 0 when there is none."""
        stub = registry_pb2_grpc.RegistryServiceStub(self._channels[gateway])
        try:
            answer = await stub.Register(request, timeout=ANSWER_SECONDS, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            self._note(gateway, f"takes no announcement: {error.code().name} {error.details()}")
            return 0.0
        self._note(gateway, "")
        return answer.lease_ms / 1000

    def _note(self, gateway: str, trouble: str) -> None:
        """One line per change."""
        if self._troubles.get(gateway) == trouble:
            return
        self._troubles[gateway] = trouble
        if trouble:
            logger.warning("gateway %s %s", gateway, trouble)
        else:
            logger.info("announced to gateway %s", gateway)
