"""Black-box conformance: any program that speaks ``octavo.kv.v1`` can be held against these tests.

    pytest tests/conformance/kv_manager --target host:port

Without a target, ours is started. Only the stubs are imported; a test of a capability that the target does not announce
is skipped, and the skip names it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc

sys.path.insert(0, str(Path(__file__).parent))

from kv_fake_worker import FakeWorker, Stub


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", default=None, help="host:port of the KV manager to test; default: start ours")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "scenario(*ids): the published cases a test covers (tests/data/kv_scenarios.json)"
    )
    config.addinivalue_line("markers", "needs(*capabilities): parts of the contract a target may lack")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address under test."""
    given = request.config.getoption("--target", default=None)
    if given:
        yield given
        return
    # A worker that sends 64 MiB may be silent for long, on a machine that does much else.
    flags = ["--listen=127.0.0.1:0", "--metrics=", "--log-level=warning", "--lease-seconds=600"]
    command = [sys.executable, "-m", "kv_manager", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["grpc"]
        process.terminate()


@pytest.fixture(scope="session")
def stub(target: str) -> Iterator[Stub]:
    with grpc.insecure_channel(target) as channel:
        yield kv_manager_pb2_grpc.KvManagerServiceStub(channel)


@pytest.fixture(scope="session")
def capabilities(stub: Stub) -> set[str]:
    answer = stub.GetCapabilities(inspect_pb2.GetCapabilitiesRequest())
    return {inspect_pb2.Capability.Name(number).removeprefix("CAPABILITY_") for number in answer.capabilities}


@pytest.fixture(autouse=True)
def _skip_what_the_target_lacks(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("needs")
    if marker is None:
        return
    lacking = sorted(set(marker.args) - request.getfixturevalue("capabilities"))
    if lacking:
        pytest.skip(f"the target does not serve {', '.join(lacking)}")


@pytest.fixture
def refused() -> Callable[[str, str], AbstractContextManager[error_details_pb2.ErrorInfo]]:
    """A block in which a call must be refused with this code and ErrorInfo.reason; yields the ErrorInfo."""

    @contextmanager
    def expect(code: str, reason: str) -> Iterator[error_details_pb2.ErrorInfo]:
        info = error_details_pb2.ErrorInfo()
        with pytest.raises(grpc.RpcError) as caught:
            yield info
        assert caught.value.code().name == code
        status = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
        for detail in status_pb2.Status.FromString(status).details:
            detail.Unpack(info)
        assert info.reason == reason

    return expect


@pytest.fixture
def attach(stub: Stub, request: pytest.FixtureRequest) -> Iterator[type[FakeWorker]]:
    """Makes fake workers, each on a pool of its own; every pool must add up at the end of the test."""
    workers: list[FakeWorker] = []

    def make(**spec: object) -> FakeWorker:
        spec.setdefault("pool", f"{request.node.name}/{len(workers)}"[-250:])
        workers.append(FakeWorker(stub, **spec))
        return workers[-1]

    yield make  # type: ignore[misc]
    for worker in workers:
        if worker.attached:
            assert worker.violations() == []
            worker.detach()
