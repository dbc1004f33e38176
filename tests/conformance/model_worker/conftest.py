"""The model worker under test (see the conftest above for where it is)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pool_view import PoolView
from worker_calls import Asker

from octavo.kv.v1 import kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc


@pytest.fixture(scope="session")
def worker(channel_to) -> worker_pb2_grpc.WorkerServiceStub:
    return worker_pb2_grpc.WorkerServiceStub(channel_to("worker"))


@pytest.fixture(scope="session")
def model(worker: worker_pb2_grpc.WorkerServiceStub) -> worker_pb2.GetModelResponse:
    return worker.GetModel(worker_pb2.GetModelRequest(), timeout=60)


@pytest.fixture(scope="session")
def asker(worker: worker_pb2_grpc.WorkerServiceStub, model: worker_pb2.GetModelResponse, salt: str) -> Asker:
    return Asker(worker, model, salt)


@pytest.fixture(scope="session")
def pool(channel_to, asker: Asker) -> PoolView:
    """The worker's pool, which nobody else uses meanwhile."""
    manager = kv_manager_pb2_grpc.KvManagerServiceStub(channel_to("manager"))
    return PoolView(manager, asker.model.pool, lambda: asker.stats().steps)
