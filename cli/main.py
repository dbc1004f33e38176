"""The ``octavo`` command. Each command imports what it needs when it runs, so that ``--help`` answers at once."""

import os
import sys
from typing import NoReturn

import typer

from cli.chat import chat
from cli.failures import CliError
from cli.generate import generate
from cli.inspection import inspect
from cli.models import models
from cli.serve import serve

app = typer.Typer(
    name="octavo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve large language models from a paged KV cache managed by a service of its own.",
)
app.command()(serve)
app.command()(generate)
app.command()(chat)
app.command()(inspect)
app.add_typer(models, name="models")


def main() -> NoReturn:
    """Run a command; a ``CliError`` is its message on stderr and exit status 1, Ctrl-C is 130."""
    try:
        app()
    except CliError as error:
        print(f"octavo: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of a pipe left, as `octavo generate ... | head` does; nothing is wrong and nothing can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    raise SystemExit(0)


if __name__ == "__main__":
    main()
