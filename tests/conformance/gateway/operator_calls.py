"""A gateway as those who run it see it, and a generation that cannot end before its client reads on."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
from text_calls import PATIENCE_SECONDS, Client

from octavo.gateway.v1 import gateway_pb2_grpc, operator_pb2, operator_pb2_grpc

SERVICE = "octavo.gateway.v1.OperatorService"
CALLS = {
    "ListWorkers": operator_pb2.ListWorkersRequest(),
    "ListTenants": operator_pb2.ListTenantsRequest(),
    "Drain": operator_pb2.DrainRequest(),
}
# What a gateway may send before its client has read it, in bytes. Buffers on the way hold more: 40 kB as measured.
WINDOW = 65_536
# 1,000 tokens with 1 + 20 log-probabilities of 14 bytes or more each: 294,000 bytes at least, more than four windows.
HELD_TOKENS, CANDIDATES = 1_000, 20
SOON_SECONDS = 60.0

Seen = TypeVar("Seen")


class Caller:
    """Calls with one key, or with none, on one gateway."""

    def __init__(self, address: str, key: str = "") -> None:
        # A window that does not grow with what is read.
        options = [("grpc.http2.lookahead_bytes", WINDOW), ("grpc.http2.bdp_probe", 0)]
        self.channel = grpc.insecure_channel(address, options)
        self.texts = gateway_pb2_grpc.GatewayServiceStub(self.channel)
        self.metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._operating = operator_pb2_grpc.OperatorServiceStub(self.channel)

    def call(self, method: str) -> Any:
        """The answer to a call of OperatorService."""
        return getattr(self._operating, method)(CALLS[method], timeout=PATIENCE_SECONDS, metadata=self.metadata)

    def workers(self) -> list[operator_pb2.WorkerStatus]:
        return list(self.call("ListWorkers").workers)

    def tenants(self) -> dict[str, operator_pb2.TenantStatus]:
        return {tenant.tenant: tenant for tenant in self.call("ListTenants").tenants}

    def anonymous(self) -> operator_pb2.TenantStatus:
        """The one tenant of a gateway that knows none."""
        (found,) = self.tenants().values()
        return found

    def close(self) -> None:
        self.channel.close()


@contextmanager
def held(client: Client, **options: Any) -> Iterator[Any]:
    """A generation that runs for certain, at any speed: the answer is larger than what may be sent unread.

    Args:
        client: on a caller's channel.
    """
    stream = client.open("Once upon a time", max_tokens=HELD_TOKENS, logprobs=CANDIDATES, **options)
    try:
        next(stream)
        yield stream
    finally:
        stream.cancel()


def soon(look: Callable[[], Seen], wanted: Callable[[Seen], bool]) -> Seen:
    """What is seen once it is as wanted: a call's end and its account are not one moment."""
    began = time.monotonic()
    while not wanted(seen := look()):
        assert time.monotonic() - began < SOON_SECONDS, seen
    return seen


def write_tenants(path: Path, keys: dict[str, str], rows: dict[str, str]) -> Path:
    """A tenants file of ours."""
    path.write_text(
        "\n".join(
            f'[tenants.{name}]\nkeys = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n{rows[name]}'
            for name, key in keys.items()
        )
    )
    return path
