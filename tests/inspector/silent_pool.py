"""A manager with a pool whose worker says nothing, and a gateway that never finds a worker: enough to look at."""

import json

from processes import ServiceProcess

from octavo.kv.v1 import attach_pb2, common_pb2, kv_manager_pb2_grpc
from service.channels import open_channel

LISTEN = ("--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--workers=127.0.0.1:1")
SECONDS = 180.0


def attach(address: str, num_blocks: int) -> None:
    """A pool whose worker says nothing."""
    spec = attach_pb2.PoolSpec(
        pool="pool",
        worker_id="w",
        num_blocks=num_blocks,
        block_size=4,
        reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
    )
    with open_channel(address) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)]), wait_for_ready=True, timeout=SECONDS)


def manager(listen: str = "127.0.0.1:0") -> ServiceProcess:
    return ServiceProcess("kv_manager", f"--listen={listen}", "--metrics=", "--lease-seconds=600").wait_ready()


def http_of(gateway: ServiceProcess) -> str:
    """host:port of its HTTP, from its log: without a worker it never is ready."""
    (line,) = gateway.wait_log("waiting for a worker", SECONDS)
    return str(json.loads(line)["http"])
