"""The gateway processes and toy workers of the gRPC tests, spoken to over HTTP."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
SERVICE = HERE.parent / "service"


def _load(name: str, path: Path) -> ModuleType:
    """Test folders are no packages (importmode=importlib), so what they share is loaded by path, under its name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gateway_processes = _load("gateway_processes", SERVICE / "conftest.py")
Http = _load("gateway_http", HERE / "gateway_http.py").Http

start_worker = gateway_processes.start_worker
start_gateway = gateway_processes.start_gateway
toy_tokenizer = gateway_processes.toy_tokenizer
toy_files = gateway_processes.toy_files
toy_template = gateway_processes.toy_template


@pytest.fixture(scope="module")
def toy() -> Iterator[Any]:
    """A toy worker that emits a token per 2 ms, one for all tests of a file."""
    worker = gateway_processes.Child([str(SERVICE / "toy_worker.py"), "--token-seconds", "0.002"])
    worker.address = str(worker.wait_event("ready")["grpc"])
    yield worker
    worker.end()


@pytest.fixture(scope="module")
def gateway(toy: Any) -> Iterator[Any]:
    """A gateway in front of it, ready; ``http`` is its raw HTTP."""
    flags = ("--http-keep-alive-seconds", "0.1", "--http-max-body-bytes", "100000", "--max-prompt-bytes", "50000")
    gateway = gateway_processes.Gateway(["--workers", toy.address, *flags, "--http-cors-origins", "https://page.test"])
    gateway.http = Http(gateway.wait_event("ready")["http"])
    yield gateway
    gateway.end()


@pytest.fixture(scope="module")
def http(gateway: Any) -> Any:
    return gateway.http
