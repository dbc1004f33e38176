"""``octavo replay``: play what a KV manager recorded, and compare the answers."""

from pathlib import Path
from typing import Annotated

import typer

from cli.failures import CliError


def replay(
    file: Annotated[Path, typer.Argument(help="record written by a KV manager's --record")],
    target: Annotated[str, typer.Option(help="KV manager to play against, host:port [default: one in here]")] = "",
) -> None:
    """Play a record against a KV manager and say which answers differ.

    Exit status 1 when some do, 2 when the file is no record or is cut off.
    """
    import grpc

    from cli.calls import explain
    from kv_manager.replay import main
    from service.errors import ServiceError

    try:
        status = main([*([f"--target={target}"] if target else []), "--", str(file)])
    except grpc.RpcError as error:
        raise explain(error, target, "KV manager") from error
    except ServiceError as error:
        raise CliError(f"the manager refuses what was recorded: {error.message}") from error
    raise SystemExit(status)
