"""``octavo replay``: play what a KV manager recorded, or tell again what an inspector watched, and compare."""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.failures import CliError
from cli.foreign import printable
from cli.options import TlsCaOption, TlsCertificateOption, TlsKeyOption, TlsOption

if TYPE_CHECKING:
    from kv_manager.replay import Target
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
        with _manager_at(target, files) as manager:
            status = _played(file, manager)
    except ServiceError as error:
        raise CliError(f"the manager refuses what was recorded: {error.message}") from error
    raise SystemExit(status)


@contextlib.contextmanager
def _manager_at(target: str, tls: "TlsFiles | None") -> Iterator["Target"]:
    """The manager to play against; it keeps no pool of the record."""
    if not target:
        from kv_manager.core.manager import Manager

        yield Manager()
        return
    from cli.calls import channel_to
    from kv_manager.replay import RemoteTarget
    from octavo.kv.v1 import kv_manager_pb2_grpc

    with channel_to(target, "KV manager", tls=tls) as channel:
        remote = RemoteTarget(kv_manager_pb2_grpc.KvManagerServiceStub(channel))
        try:
            yield remote
        finally:
            remote.leave()


def _played(file: Path, manager: "Target") -> int:
    """Play a record and say what differs; returns the exit status. One that is cut off is played as far as it goes."""
    from kv_manager import replay as playing
    from kv_manager.recording import CutRecordError, read_records

    count = different = 0
    cut = False
    try:
        with file.open("rb") as source:
            for played in playing.replay(read_records(source), manager):
                count += 1
                if not played.equal:
                    different += 1
                    print(f"{played.kind} {played.step} of pool {printable(repr(played.pool))} differs")
                    print(f"recorded: {played.recorded}\nreplayed: {played.replayed}")
    except CutRecordError as error:
        cut = True
        print(f"{file}: {error}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"{file}: {error}", file=sys.stderr)
        return 2
    print(f"{count} records played, {different} answers differ")
    if different:
        return 1
    return 2 if cut else 0


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
