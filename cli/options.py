"""Options that several commands share."""

import os
from typing import Annotated

import typer

from cli.stack import GATEWAY, MANAGER

GATEWAY_VARIABLE = "OCTAVO_ADDRESS"
MANAGER_VARIABLE = "OCTAVO_MANAGER_ADDRESS"

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
