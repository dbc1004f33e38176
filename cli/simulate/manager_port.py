"""A KV manager to drive: the core in this process, or a manager at an address."""

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, kv_manager_pb2_grpc, steps_pb2

if TYPE_CHECKING:
    from service.channels import TlsFiles


class ManagerPort(Protocol):
    """What the simulator asks of a manager. ``Manager`` is one as it is."""

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse: ...
    def detach(self, request: attach_pb2.DetachRequest) -> attach_pb2.DetachResponse: ...
    def step(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse: ...
    def inspect_pool(self, request: inspect_pb2.InspectPoolRequest) -> inspect_pb2.InspectPoolResponse: ...
    def check_integrity(self, request: inspect_pb2.CheckIntegrityRequest) -> inspect_pb2.CheckIntegrityResponse: ...


class RemoteManager:
    """A manager at an address, behind its stub."""

    def __init__(self, stub: kv_manager_pb2_grpc.KvManagerServiceStub) -> None:
        self._stub = stub
        self.detach = stub.Detach
        self.step = stub.Step
        self.inspect_pool = stub.InspectPool
        self.check_integrity = stub.CheckIntegrity

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        """As ``Manager.attach``."""
        return self._stub.Attach(iter(parts))


@contextlib.contextmanager
def manager_at(address: str, tls: "TlsFiles | None" = None) -> Iterator[ManagerPort]:
    """The manager at ``address``, by TLS where files of it are given, or a new one in this process when that is
    empty."""
    if not address:
        yield Manager()
        return
    from cli.calls import channel_to

    with channel_to(address, "KV manager", tls=tls) as channel:
        yield RemoteManager(kv_manager_pb2_grpc.KvManagerServiceStub(channel))


class AttachedPool:
    """A pool of the simulator's own, its steps numbered and complete as soon as they are answered.

    The regime is the ordered one: what a step frees, that step may grant.
    """

    def __init__(self, port: ManagerPort, num_blocks: int, block_size: int, watermark_blocks: int = 0) -> None:
        self._port = port
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.name = f"simulate-{secrets.token_hex(4)}"
        spec = attach_pb2.PoolSpec(
            pool=self.name,
            worker_id=self.name,
            num_blocks=num_blocks,
            block_size=block_size,
            watermark_blocks=watermark_blocks,
            model_fingerprint="simulated",
            reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
        )
        self._epoch = port.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
        self._step = 0

    def request(self) -> steps_pb2.StepRequest:
        """The next step's request, to be filled and given to ``answer``."""
        return steps_pb2.StepRequest(pool=self.name, epoch=self._epoch, step=self._step + 1, completed_step=self._step)

    def answer(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        """Run a step."""
        response = self._port.step(request)
        self._step += 1
        return response

    def summary(self) -> inspect_pb2.PoolSummary:
        """The pool as its manager sees it."""
        return self._port.inspect_pool(inspect_pb2.InspectPoolRequest(pool=self.name)).summary

    def violations(self) -> list[str]:
        """Invariants that do not hold."""
        return list(self._port.check_integrity(inspect_pb2.CheckIntegrityRequest(pool=self.name)).violations)

    def close(self) -> None:
        """Give the pool up."""
        self._port.detach(attach_pb2.DetachRequest(pool=self.name, epoch=self._epoch))
