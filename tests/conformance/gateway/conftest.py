"""The gateway under test (see the conftest above for where it is)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pool_view import PoolView
from text_calls import Client

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc


@pytest.fixture(scope="session")
def client(channel_to, salt: str) -> Client:
    """A client of the first model that is served."""
    stub = gateway_pb2_grpc.GatewayServiceStub(channel_to("gateway"))
    model = stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=10).models[0]
    return Client(stub, model, salt)


@pytest.fixture(scope="session")
def pool(channel_to) -> PoolView:
    """The pool of the only worker behind the gateway, which nobody else uses meanwhile."""
    worker = worker_pb2_grpc.WorkerServiceStub(channel_to("worker"))
    manager = kv_manager_pb2_grpc.KvManagerServiceStub(channel_to("manager"))
    name = worker.GetModel(worker_pb2.GetModelRequest(), timeout=10).pool
    return PoolView(manager, name, lambda: worker.GetStats(worker_pb2.GetStatsRequest(), timeout=10).steps)
