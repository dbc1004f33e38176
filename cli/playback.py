"""``octavo replay``: play what a KV manager recorded, or tell again what an inspector watched, and compare."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.failures import CliError
from cli.foreign import printable
from cli.options import TlsCaOption, TlsCertificateOption, TlsKeyOption, TlsOption

if TYPE_CHECKING:
    from service.channels import TlsFiles


def replay(
    file: Annotated[
        Path, typer.Argument(help="record written by a KV manager's --record, or exported by an inspector page")
    ],
    target: Annotated[str, typer.Option(help="KV manager to play against, host:port [default: one in here]")] = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Play a record against a KV manager and say which answers differ.

    What an inspector page exported asks nothing of a manager: its events are told again, and compared with what the
    manager itself said of the pool every second.

    Exit status 1 when something differs, 2 when the file is no record or is cut off.
    """
    from cli.options import tls_files
    from service.errors import ServiceError

    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    if (status := _told_again(file, target)) is not None:
        raise SystemExit(status)
    try:
        status = _played(file, target, files)
    except ServiceError as error:
        raise CliError(f"the manager refuses what was recorded: {error.message}") from error
    raise SystemExit(status)


def _played(file: Path, target: str, tls: "TlsFiles | None") -> int:
    """Play a record against the manager at ``target``, or one in here; returns the exit status."""
    from kv_manager.core.manager import Manager
    from kv_manager.replay import manager_behind, play

    if not target:
        return play(file, Manager())
    from cli.calls import channel_to

    with channel_to(target, "KV manager", tls=tls) as channel, manager_behind(channel) as manager:
        return play(file, manager)


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
