"""Health check for containers: ``python -m service.probe HOST:PORT`` exits 0 when grpc.health.v1 answers SERVING."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.channels import open_channel

TIMEOUT_SECONDS = 3.0


def probe(address: str) -> str | None:
    """None when the server at ``address`` serves, otherwise why not."""
    with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            status = int(stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS).status)
        except grpc.RpcError as error:
            return str(error.details() if isinstance(error, grpc.Call) else error)
    if status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m service.probe HOST:PORT")
    if (problem := probe(sys.argv[1])) is not None:
        raise SystemExit(f"{sys.argv[1]}: {problem}")
