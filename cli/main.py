"""The ``octavo`` command: runs what ``commands`` holds, and makes a line and an exit status of what went wrong."""

import sys
from typing import NoReturn

from cli.failures import CliError, refusal
from cli.foreign import LAYOUT, printable
from cli.readers import ReaderLeft, guard_stdout, silence_stdout


def main() -> NoReturn:
    """Run a command. What ends it early is one line on stderr and exit status 1; Ctrl-C is 130.

    That the reader of a pipe left, as in `octavo tour | head`, is no failure.
    """
    guard_stdout()
    status = _status()
    try:
        sys.stdout.flush()  # what lies in its buffer would break the pipe when nobody is left to say so
    except ReaderLeft:
        silence_stdout()
    except CliError as error:
        status = _told(error)
    raise SystemExit(status)


def _status() -> str | int | None:
    """Run a command; returns its exit status."""
    try:
        _run()
    except SystemExit as end:
        return end.code
    except CliError as error:
        return _told(error)
    except (ValueError, OverflowError) as error:
        # What protobuf and gRPC raise for a value that no message can carry.
        print(f"octavo: {refusal(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except ReaderLeft:
        silence_stdout()
    return 0


def _told(error: CliError) -> int:
    print(f"octavo: {printable(str(error), keep=LAYOUT)}", file=sys.stderr)
    return 1


def _run() -> None:
    try:
        from cli.commands import app

        app()
    except ModuleNotFoundError as error:
        # The stubs alone install this command too; it can say at least what it lacks.
        raise CliError(f"{error}: pip install 'octavo[cli]', or 'octavo[demo]' to serve a model here") from error


if __name__ == "__main__":
    main()
