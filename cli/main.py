"""The ``octavo`` command: runs what ``commands`` holds, and makes a line and an exit status of what went wrong."""

import os
import sys
from typing import NoReturn

from cli.failures import CliError, refusal
from cli.foreign import LAYOUT, printable


def main() -> NoReturn:
    """Run a command. What ends it early is one line on stderr and exit status 1; Ctrl-C is 130."""
    try:
        _run()
    except CliError as error:
        print(f"octavo: {printable(str(error), keep=LAYOUT)}", file=sys.stderr)
        raise SystemExit(1) from None
    except (ValueError, OverflowError) as error:
        # What protobuf and gRPC raise for a value that no message can carry.
        print(f"octavo: {refusal(error)}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of a pipe left, as `octavo generate ... | head` does; nothing is wrong and nothing can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    raise SystemExit(0)


def _run() -> None:
    try:
        from cli.commands import app

        app()
    except ModuleNotFoundError as error:
        # The stubs alone install this command too; it can say at least what it lacks.
        raise CliError(f"{error}: pip install 'octavo[cli]', or 'octavo[demo]' to serve a model here") from error


if __name__ == "__main__":
    main()
