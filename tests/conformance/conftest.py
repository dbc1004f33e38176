"""Black-box conformance of any program that speaks ``octavo.worker.v1`` or ``octavo.gateway.v1``.

    pytest tests/conformance/model_worker --worker host:port --manager host:port
    pytest tests/conformance/gateway --gateway host:port --gateway-http host:port --worker host:port --manager host:port

Each address may come from the environment as well: OCTAVO_CONFORMANCE_WORKER, _MANAGER, _GATEWAY, _GATEWAY_HTTP and
_DRAINING_WORKER. Without any, ours are started on a tiny model of random weights. Only the stubs are imported. What the
services under test are, and what is skipped where an address is missing: docs/conformance.md.
"""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

sys.path.insert(0, str(Path(__file__).parent))

OPTIONS = {
    "worker": "host:port of the model worker to test",
    "manager": "host:port of the KV manager that keeps its pool",
    "gateway": "host:port of the gateway to test",
    "gateway-http": "host:port of its HTTP surface",
    "draining-worker": "host:port of a worker that may be drained for good",
}
# Room for a stream that ends only when it is ended: at 4,000 tokens a second, which a fast machine makes with the tiny
# model, it lasts two seconds. Three such samples fit the pool.
CONTEXT, BLOCK = 8_192, 16
SIZES = {"num-blocks": 3 * CONTEXT // BLOCK, "block-size": BLOCK, "dtype": "float32", "threads": 1}


class Services(NamedTuple):
    """Addresses, empty where there is none; and the folder of the tiny model where they are ours."""

    worker: str
    manager: str
    gateway: str
    gateway_http: str
    draining_worker: str
    model: Path | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, meaning in OPTIONS.items():
        parser.addoption(f"--{name}", default=None, help=meaning)


@pytest.fixture(scope="session")
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The services under test: those that are named, or else ours."""
    given = {
        name.replace("-", "_"): request.config.getoption(f"--{name}", default=None)
        or os.environ.get(f"OCTAVO_CONFORMANCE_{name.replace('-', '_').upper()}", "")
        for name in OPTIONS
    }
    if any(given.values()):
        yield Services(**given)
        return
    with our_services(tmp_path_factory.mktemp("conformance") / "tiny") as ours:
        yield ours


@contextmanager
def our_services(folder: Path) -> Iterator[Services]:
    """Ours, as processes, on a model whose tokens are bytes."""
    from byte_model import byte_model
    from processes import running_stack

    model = byte_model(folder, max_position_embeddings=CONTEXT)
    # The model's template says nothing of tools, so it shows no syntax of calls either.
    gateway = {"http-listen": "127.0.0.1:0", "tool-parser": "hermes"}
    with running_stack(model, worker_flags=SIZES, gateway_flags=gateway) as stack:
        addresses = stack.worker.address, stack.manager.address, stack.gateway.address, stack.gateway.ready["http"]
        yield Services(*addresses, draining_worker="", model=model)


@pytest.fixture
def draining_worker(services: Services) -> Iterator[str]:
    """A worker that may be drained for good; of ours, a second one."""
    if services.draining_worker or services.model is None:
        if not services.draining_worker:
            pytest.skip("no --draining-worker is given")
        yield services.draining_worker
        return
    from processes import ServiceProcess

    values = {**SIZES, "model": services.model, "manager": services.manager, "pool": "leaving"}
    flags = [f"--{name}={value}" for name, value in {**values, "listen": "127.0.0.1:0", "metrics": ""}.items()]
    with ServiceProcess("model_worker", *flags) as process:
        yield process.wait_ready().address


@pytest.fixture(scope="session")
def channel_to(services: Services) -> Iterator["ChannelTo"]:
    opened = ChannelTo(services)
    yield opened
    opened.close()


class ChannelTo:
    """A channel per service; asking for one whose address is missing skips the test."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[str, grpc.Channel] = {}

    def __call__(self, service: str) -> grpc.Channel:
        address = self.address(service)
        if service not in self._open:
            self._open[service] = grpc.insecure_channel(address)
        return self._open[service]

    def address(self, service: str) -> str:
        address: str = getattr(self._services, service)
        if not address:
            pytest.skip(f"no --{service.replace('_', '-')} is given")
        return address

    def close(self) -> None:
        for channel in self._open.values():
            channel.close()


@pytest.fixture(scope="session")
def salt() -> str:
    """Keeps the prefixes of this run from those of earlier ones on the same services."""
    return secrets.token_hex(8)
