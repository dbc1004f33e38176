"""Children's log lines, told apart: the service's name in its colour, then time, level, message and fields."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from cli.foreign import LAYOUT, printable

COLOURS = {"kv_manager": "magenta", "model_worker": "cyan", "gateway": "green"}
LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red", "DEBUG": "dim"}
_WIDTH = max(map(len, COLOURS))
# Already in the line, or of no use to people.
_HIDDEN = frozenset({"time", "level", "service", "logger", "message", "exception", "progress"})


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line as the services log it (``service.logs.JsonFormatter``), or any other line as a bare message."""

    message: str
    level: str = ""
    clock: str = ""
    fields: Mapping[str, Any] | None = None
    progress: float | None = None
    exception: str | None = None

    @staticmethod
    def parse(line: str) -> "LogLine":
        try:
            entry = json.loads(line) if line.startswith("{") else None
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or "message" not in entry:
            return LogLine(message=line)
        progress = entry.get("progress")
        return LogLine(
            message=str(entry["message"]),
            level=str(entry.get("level", "")),
            clock=str(entry.get("time", ""))[11:19],
            fields={key: value for key, value in entry.items() if key not in _HIDDEN},
            progress=float(progress) if isinstance(progress, int | float) else None,
            exception=entry.get("exception"),
        )

    def render(self, service: str) -> Text:
        """The line for a terminal; without colours it is the line for a file."""
        text = Text()
        text.append(f"{service:<{_WIDTH}} | ", style=COLOURS.get(service, "blue"))
        if self.clock:
            text.append(f"{self.clock} ", style="dim")
        if self.level and self.level != "INFO":
            text.append(f"{self.level} ", style=LEVEL_STYLES.get(self.level, ""))
        text.append(printable(self.message, keep=LAYOUT), style=LEVEL_STYLES.get(self.level, ""))
        for key, value in (self.fields or {}).items():
            text.append(printable(f" {key}={value}"), style="dim")
        if self.exception:
            text.append(f"\n{printable(self.exception, keep=LAYOUT)}", style="red")
        return text


class LogPrinter:
    """Prints children's lines and keeps the newest progress (0 to 1) that each told."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.progress: dict[str, float] = {}

    def __call__(self, service: str, line: str) -> None:
        parsed = LogLine.parse(line)
        if parsed.progress is not None:
            self.progress[service] = parsed.progress
            if self._console.is_terminal:
                return  # the spinner shows it
        self._console.print(parsed.render(service), soft_wrap=True)
