"""Options that several commands share."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.stack import GATEWAY, MANAGER, WORKER, Endpoint
from service.unknown_settings import WORKER_ADDRESS

if TYPE_CHECKING:
    from service.channels import TlsFiles

GATEWAY_VARIABLE = "OCTAVO_ADDRESS"
WORKER_VARIABLE = WORKER_ADDRESS
MANAGER_VARIABLE = "OCTAVO_MANAGER_ADDRESS"
API_KEY_VARIABLE = "OCTAVO_API_KEY"
CA_VARIABLE = "OCTAVO_TLS_CA"
CERTIFICATE_VARIABLE = "OCTAVO_TLS_CERTIFICATE"
KEY_VARIABLE = "OCTAVO_TLS_KEY"

# What the protos' integers hold; what a model takes of that is the gateway's to say.
INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1

AddressOption = Annotated[
    str, typer.Option(help=f"gateway's host:port [default: ${GATEWAY_VARIABLE}, else 127.0.0.1:{GATEWAY.default_port}]")
]
ManagerOption = Annotated[
    str,
    typer.Option(
        "--address",
        help=f"KV manager's host:port [default: ${MANAGER_VARIABLE}, else 127.0.0.1:{MANAGER.default_port}]",
    ),
]
WorkerOption = Annotated[
    str,
    typer.Option(
        "--address",
        help=f"model worker's host:port [default: ${WORKER_VARIABLE}, else 127.0.0.1:{WORKER.default_port}]",
    ),
]
ApiKeyOption = Annotated[
    str,
    typer.Option(
        envvar=API_KEY_VARIABLE,
        show_envvar=False,
        help=f"key of a tenant of the gateway; others see flags, so best by variable [default: ${API_KEY_VARIABLE}]",
    ),
]
TlsOption = Annotated[bool, typer.Option("--tls", help="call by TLS, verified by the authorities that gRPC knows")]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        envvar=CA_VARIABLE,
        show_envvar=False,
        help=f"call by TLS, verified by this authority, a PEM file [default: ${CA_VARIABLE}]",
    ),
]
TlsCertificateOption = Annotated[
    Path | None,
    typer.Option(
        envvar=CERTIFICATE_VARIABLE,
        show_envvar=False,
        help=f"certificate to show, a PEM file [default: ${CERTIFICATE_VARIABLE}]",
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option(envvar=KEY_VARIABLE, show_envvar=False, help=f"its key, a PEM file [default: ${KEY_VARIABLE}]"),
]
PoolOption = Annotated[str, typer.Option(help="pool's name [default: the only one]")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]


def gateway_address(given: str) -> str:
    return _address(given, GATEWAY_VARIABLE, GATEWAY)


def worker_address(given: str) -> str:
    return _address(given, WORKER_VARIABLE, WORKER)


def manager_address(given: str) -> str:
    return _address(given, MANAGER_VARIABLE, MANAGER)


def _address(given: str, variable: str, endpoint: Endpoint) -> str:
    """Where to call; an empty variable, as compose files make one of one that is not set, says nothing."""
    return given or os.environ.get(variable) or f"127.0.0.1:{endpoint.default_port}"


def accept_any_bytes() -> None:
    """Read stdin as UTF-8, and bytes that are none as Python reads arguments: protobuf refuses both in one place."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")


def tls_files(*, wanted: bool, ca: Path | None, certificate: Path | None, key: Path | None) -> "TlsFiles | None":
    """What the options of TLS say together; None for plain text.

    Raises:
        typer.BadParameter: half of a pair.
    """
    from service.channels import TlsFiles

    if (certificate is None) != (key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key go together", param_hint="--tls-certificate")
    if not wanted and ca is None and certificate is None:
        return None
    return TlsFiles(ca, certificate, key)
