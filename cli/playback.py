"""``octavo replay``: play what a KV manager recorded, or tell again what an inspector watched, and compare."""

import itertools
from pathlib import Path
from typing import Annotated

import typer

from cli.failures import CliError
from cli.foreign import printable


def replay(
    file: Annotated[
        Path, typer.Argument(help="record written by a KV manager's --record, or exported by an inspector page")
    ],
    target: Annotated[str, typer.Option(help="KV manager to play against, host:port [default: one in here]")] = "",
) -> None:
    """Play a record against a KV manager and say which answers differ.

    What an inspector page exported asks nothing of a manager: its events are told again, and compared with what the
    manager itself said of the pool every second.

    Exit status 1 when something differs, 2 when the file is no record or is cut off.
    """
    import grpc

    from cli.calls import explain
    from kv_manager.replay import main
    from service.errors import ServiceError

    if (status := _told_again(file, target)) is not None:
        raise SystemExit(status)
    try:
        status = main([*([f"--target={target}"] if target else []), "--", str(file)])
    except grpc.RpcError as error:
        raise explain(error, target, "KV manager") from error
    except ServiceError as error:
        raise CliError(f"the manager refuses what was recorded: {error.message}") from error
    raise SystemExit(status)


def _told_again(file: Path, target: str) -> int | None:
    """The exit status for a recording of what was watched; None for any other file."""
    from cli.web_record import WATCHED, Replay
    from kv_manager.recording import CutRecordError, read_records

    if not file.is_file():  # what is read once, such as a pipe, is left to whoever plays records
        return None
    cut, told = False, Replay()
    try:
        with file.open("rb") as source:
            records = read_records(source)
            first = next(records, None)
            if first is None or first.WhichOneof("entry") not in WATCHED:
                return None
            if target:
                raise CliError(f"{file} holds what was watched and asks for nothing: it goes with no --target")
            told.tell(itertools.chain((first,), records))
    except CutRecordError as error:
        cut = told.events > 0
        if not cut:
            return None
        print(f"{file}: {error}")
    except (OSError, ValueError) as error:
        if not told.events:
            return None  # whoever plays records says what is wrong with it
        raise CliError(f"{file}: {error}") from error
    for problem in told.problems:
        print(printable(problem))
    late = f", {told.late} came too late to be" if told.late else ""
    print(
        f"{told.events} events told again, {told.compared} accounts of the manager compared{late}, "
        f"{len(told.problems)} differ"
    )
    if told.problems:
        return 1
    return 2 if cut else 0
