"""Streams of a client container, as heard so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from compose_project import Lines, Project

SILENCE_SECONDS = 90.0
PROGRAM = ("python", "/client/streams.py", "gateway:50050")


@dataclass(slots=True)
class Stream:
    """What one stream brought.

    Attributes:
        code: how it ended, empty while it runs.
        paused: seconds without a worker.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    code: str = ""
    details: str = ""
    migrations: int = 0
    paused: float = 0.0


class Streams:
    """One stream per prompt, all at once."""

    def __init__(self, project: Project, prompts: Sequence[str], tokens: int) -> None:
        self.streams = [Stream() for _ in prompts]
        self._lines = Lines(project.container("client"), *PROGRAM, str(tokens), *prompts).take(SILENCE_SECONDS)

    def until_each_has(self, tokens: int) -> "Streams":
        """Listen until every stream has brought so many tokens."""
        while not all(len(stream.tokens) >= tokens for stream in self.streams):
            line = next(self._lines, None)
            assert line is not None, f"all streams ended before: {self.streams}"
            self._take(line)
        return self

    def to_the_end(self) -> list[Stream]:
        for line in self._lines:
            self._take(line)
        return self.streams

    @property
    def running(self) -> int:
        return sum(not stream.code for stream in self.streams)

    def _take(self, line: dict[str, Any]) -> None:
        stream = self.streams[line["stream"]]
        if "code" in line:
            stream.code, stream.details = line["code"], line["details"]
            stream.migrations, stream.paused = line["migrations"], line["paused"]
        else:
            stream.tokens += line["tokens"]
            stream.text += line["text"]


def when_whole(project: Project, what: Sequence[str], workers: int, since: float, seconds: float) -> Lines:
    """Asks, beside whatever else runs, until it is so; one line of how many seconds after ``since`` each came true."""
    addresses = ("gateway:50050", "kv_manager:50052")
    program = ("python", "/client/whole.py", *addresses, str(workers), f"{since:.3f}", f"{seconds:g}", *what)
    return Lines(project.container("client"), *program)
