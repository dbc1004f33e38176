"""The gateway processes and toy workers of the gRPC tests, spoken to by tenants."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def _load(name: str, path: Path) -> ModuleType:
    """Test folders are no packages (importmode=importlib), so what they share is loaded by path, under its name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gateway_processes = _load("gateway_processes", HERE.parent / "service" / "conftest.py")
_load("gateway_http", HERE.parent / "http" / "gateway_http.py")

start_worker = gateway_processes.start_worker
start_gateway = gateway_processes.start_gateway
