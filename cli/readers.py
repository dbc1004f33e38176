"""Who reads what a command prints may leave at any time, as `head` does behind a pipe."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from cli.failures import CliError


class ReaderLeft(Exception):
    """Nobody reads stdout any more. No OSError: libraries make a failure of their own of a broken pipe."""


class _Guarded:
    """A stream whose broken pipe is ``ReaderLeft``; what cannot be written for another reason ends the command."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._failures():
            return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._failures():
            self._stream.flush()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            raise ReaderLeft from error
        except OSError as error:
            silence_stdout()  # else what is left is tried again when the process ends, and fails behind our line
            raise CliError(f"the output cannot be written: {(error.strerror or str(error)).lower()}") from error


def guard_stdout() -> None:
    """Have whatever prints raise ``ReaderLeft`` from now on when nobody reads it."""
    # Of a process that was started with stdout closed there is none.
    stream = cast("TextIO | None", sys.stdout) or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stdout = cast(TextIO, _Guarded(stream))


def silence_stdout() -> None:
    """Throw away what was printed and not read, and what is printed later."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
