"""The gateway under test (see the conftest above for where it is), and two like it where tenants have keys.

    pytest tests/conformance/gateway ... --guarded-gateway host:port --operator-key KEY --tenant-key KEY
        --draining-gateway host:port

Each may come from the environment as well: OCTAVO_CONFORMANCE_GUARDED_GATEWAY, ...
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from http_calls import Http
from operator_calls import Caller, write_tenants
from pool_view import PoolView
from text_calls import Client
from tool_calls import Tooled

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

OPTIONS = {
    "guarded-gateway": "host:port of a gateway with tenants, before the same worker",
    "operator-key": "key of a tenant there that is an operator",
    "tenant-key": "key of one that is none",
    "draining-gateway": "host:port of another gateway with these tenants, which may be drained for good",
}
KEYS = {"boss": "boss-key-0123456789", "plain": "plain-key-0123456789"}
# Two generations at once are all that the second may have.
ROWS = {"boss": "operator = true", "plain": "concurrent_requests = 2\ntokens_per_minute = 1000000"}


class Guarded(NamedTuple):
    """A gateway whose tenants have keys: an operator's, and another tenant's."""

    address: str
    operator_key: str
    tenant_key: str


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, meaning in OPTIONS.items():
        parser.addoption(f"--{name}", default=None, help=meaning)


@pytest.fixture(scope="session")
def given(request: pytest.FixtureRequest) -> dict[str, str]:
    """What was named of OPTIONS, empty where nothing was."""
    return {
        name: request.config.getoption(f"--{name}", default=None)
        or os.environ.get(f"OCTAVO_CONFORMANCE_{name.replace('-', '_').upper()}", "")
        for name in OPTIONS
    }


@contextmanager
def guarded_gateway(name: str, services, given: dict[str, str], folder: Path) -> Iterator[Guarded]:
    """The gateway that an option names; of ours a new one, which knows a second worker that is not there."""
    if services.model is None:
        missing = [one for one in (name, "operator-key", "tenant-key") if not given[one]]
        if missing:
            pytest.skip(f"no --{missing[0]} is given")
        yield Guarded(given[name], given["operator-key"], given["tenant-key"])
        return
    from processes import ServiceProcess

    tenants = write_tenants(folder / "tenants.toml", KEYS, ROWS)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        workers = f"{services.worker},127.0.0.1:{nobody.getsockname()[1]}"
        flags = ("--listen=127.0.0.1:0", "--http-listen=", f"--workers={workers}", f"--tenants={tenants}")
        with ServiceProcess("gateway", *flags) as process:
            yield Guarded(process.wait_ready().address, KEYS["boss"], KEYS["plain"])


@pytest.fixture(scope="session")
def guarded(services, given: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_gateway("guarded-gateway", services, given, tmp_path_factory.mktemp("guarded")) as gateway:
        yield gateway


@pytest.fixture
def leaving(services, given: dict[str, str], tmp_path: Path) -> Iterator[Guarded]:
    """One that may be drained for good."""
    with guarded_gateway("draining-gateway", services, given, tmp_path) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def caller(channel_to) -> Iterator[Caller]:
    """Somebody without a key, on the gateway without tenants."""
    opened = Caller(channel_to.address("gateway"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def client(channel_to, salt: str) -> Client:
    """A client of the first model that is served."""
    stub = gateway_pb2_grpc.GatewayServiceStub(channel_to("gateway"))
    model = stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=60).models[0]
    return Client(stub, model, salt)


@pytest.fixture(scope="session")
def http(channel_to) -> Http:
    return Http(channel_to.address("gateway_http"))


@pytest.fixture(scope="session")
def tooled(client: Client, services) -> Tooled:
    """The client, with functions to call; one of a model without tools skips the test."""
    offered = Tooled(client)
    trouble = offered.trouble()
    if trouble:
        assert services.model is None, trouble
        pytest.skip(f"the gateway takes no tools for this model: {trouble}")
    return offered


@pytest.fixture(scope="session")
def pool(channel_to) -> PoolView:
    """The pool of the only worker behind the gateway, which nobody else uses meanwhile."""
    worker = worker_pb2_grpc.WorkerServiceStub(channel_to("worker"))
    manager = kv_manager_pb2_grpc.KvManagerServiceStub(channel_to("manager"))
    name = worker.GetModel(worker_pb2.GetModelRequest(), timeout=60).pool
    return PoolView(manager, name, lambda: worker.GetStats(worker_pb2.GetStatsRequest(), timeout=60).steps)
