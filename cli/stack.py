"""Which processes make up a local Octavo, with which flags, and where they listen."""

import importlib.util
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.failures import CliError
from service.settings import SettingsError, read_table


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of a service and the names under which a user may set it."""

    title: str
    table: str
    prefix: str
    key: str
    default_port: int
    flag: str


GATEWAY = Endpoint("gateway", "gateway", "OCTAVO_GATEWAY_", "listen", 50050, "--port")
GATEWAY_HTTP = Endpoint("gateway's HTTP", "gateway", "OCTAVO_GATEWAY_", "http_listen", 8000, "--http-port")
WORKER = Endpoint("model worker", "worker", "OCTAVO_WORKER_", "listen", 50051, "--worker-port")
MANAGER = Endpoint("KV manager", "kv_manager", "OCTAVO_KV_", "listen", 50052, "--manager-port")
WORKER_METRICS = Endpoint(
    "model worker's metrics", "worker", "OCTAVO_WORKER_", "metrics", 9101, "--worker-metrics-port"
)
MANAGER_METRICS = Endpoint(
    "KV manager's metrics", "kv_manager", "OCTAVO_KV_", "metrics", 9102, "--manager-metrics-port"
)

ENDPOINTS = (GATEWAY, GATEWAY_HTTP, WORKER, WORKER_METRICS, MANAGER, MANAGER_METRICS)


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What ``octavo serve`` was asked for. Options a user did not give stay with each service's own settings.

    ``worker``, ``manager`` and ``gateway`` map a setting's name to its value; None means not given.
    """

    host: str = "127.0.0.1"
    ports: Mapping[Endpoint, int | None] = field(default_factory=dict)
    config: Path | None = None
    common: Mapping[str, object] = field(default_factory=dict)
    manager: Mapping[str, object] = field(default_factory=dict)
    worker: Mapping[str, object] = field(default_factory=dict)
    gateway: Mapping[str, object] = field(default_factory=dict)


# What the gateway and the worker import beyond this command's own libraries.
LIBRARIES = ("jinja2", "pydantic_settings", "safetensors", "starlette", "tokenizers", "torch", "uvicorn")


def check_installed() -> None:
    """Refuse early what three children would refuse each in its own words.

    Raises:
        CliError: a library of the services is missing.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise CliError(f"serving here needs {', '.join(missing)}: pip install 'octavo[demo]'")


def listen_address(endpoint: Endpoint, options: StackOptions, environ: Mapping[str, str] = os.environ) -> str:
    """Where the endpoint will listen: flag > environment > configuration file > default, as the service itself decides.

    Raises:
        CliError: the configuration file is missing or broken.
    """
    port = options.ports.get(endpoint)
    if port is not None:
        return f"{options.host}:{port}"
    if variable := environ.get(f"{endpoint.prefix}{endpoint.key.upper()}"):
        return variable
    try:
        row = read_table(options.config, endpoint.table, environ).get(endpoint.key)
    except SettingsError as error:
        raise CliError(str(error)) from error
    return str(row) if row else f"{options.host}:{endpoint.default_port}"


def is_fixed(address: str) -> bool:
    """Whether the address names a port, so that others can be told of it before it is bound."""
    return not address.endswith(":0")


def check_free(addresses: Mapping[Endpoint, str]) -> None:
    """Refuse early, by name of the flag, what a child would refuse later.

    Raises:
        CliError: an address is taken, or two services want the same one.
    """
    seen: dict[str, Endpoint] = {}
    for endpoint, address in addresses.items():
        if not is_fixed(address):
            continue
        if address in seen:
            raise CliError(f"{endpoint.title} and {seen[address].title} both want {address}: change {endpoint.flag}")
        seen[address] = endpoint
        host, _, port = address.rpartition(":")
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host.strip("[]"), int(port)))
        except (OSError, ValueError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            message = (
                f"the {endpoint.title} cannot listen on {address}: {reason.lower()}; choose another {endpoint.flag}"
            )
            raise CliError(message) from error


def flags(settings: Mapping[str, object]) -> list[str]:
    """``{"block_size": 16}`` as ``["--block-size", "16"]``; None is left out."""
    return [
        word
        for name, value in settings.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def manager_command(options: StackOptions, addresses: Mapping[Endpoint, str]) -> list[str]:
    listen = {"listen": addresses[MANAGER], "metrics": addresses[MANAGER_METRICS]}
    return ["-m", "kv_manager", *flags({**options.common, **options.manager, **listen})]


def worker_command(options: StackOptions, addresses: Mapping[Endpoint, str], manager: str) -> list[str]:
    listen = {"listen": addresses[WORKER], "metrics": addresses[WORKER_METRICS], "manager": manager}
    return ["-m", "model_worker", *flags({**options.common, **options.worker, **listen})]


def gateway_command(
    options: StackOptions, addresses: Mapping[Endpoint, str], workers: Iterable[str], manager: str | None = None
) -> list[str]:
    # An address that is missing here is one not to listen on.
    http = addresses.get(GATEWAY_HTTP, "")
    listen: dict[str, object] = {"listen": addresses[GATEWAY], "http_listen": http, "workers": ",".join(workers)}
    # To be looked at alone: among its `managers` it would be asked before a request is routed, and there is one worker.
    listen["inspect_managers"] = manager
    return ["-m", "gateway", *flags({**options.common, **options.gateway, **listen})]


def embedded_command(options: StackOptions, addresses: Mapping[Endpoint, str]) -> list[str]:
    """The worker with the manager inside; the manager still listens, for ``octavo inspect``."""
    manager = {**options.common, **options.manager, "listen": addresses[MANAGER]}
    listen = {"listen": addresses[WORKER], "metrics": addresses[WORKER_METRICS]}
    worker = {**options.common, **options.worker, **listen}
    return ["-m", "cli.embedded_worker", *flags(manager), "--", *flags(worker)]
