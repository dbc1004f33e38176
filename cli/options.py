"""Options that several commands share."""

import io
import os
import sys
from typing import Annotated

import typer

from cli.stack import GATEWAY, MANAGER

GATEWAY_VARIABLE = "OCTAVO_ADDRESS"
MANAGER_VARIABLE = "OCTAVO_MANAGER_ADDRESS"

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


def gateway_address(given: str) -> str:
    return given or os.environ.get(GATEWAY_VARIABLE, f"127.0.0.1:{GATEWAY.default_port}")


def manager_address(given: str) -> str:
    return given or os.environ.get(MANAGER_VARIABLE, f"127.0.0.1:{MANAGER.default_port}")


def accept_any_bytes() -> None:
    """Read stdin as UTF-8, and bytes that are none as Python reads arguments: protobuf refuses both in one place."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
