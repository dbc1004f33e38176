"""Logging: one JSON object per line, or plain lines on a terminal. Never tokens or text.

Lines that are written while a request is served hold its name, and its trace's id while it is traced.
"""

import json
import logging
import sys
import time

from service import request_ids, tracing

# Attributes every LogRecord has; anything else was given by ``extra`` and is printed as a field.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "service", "logger", "message", ...}``; fields given by ``extra=`` are added."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if name := request_ids.current():
            entry["request_id"] = name
        if trace_id := tracing.current().trace_id:
            entry["trace_id"] = trace_id
        entry.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class PlainFormatter(logging.Formatter):
    """``12:00:00 INFO    gateway.runs: message [request]``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        name = vars(record).get("request_id") or request_ids.current()
        # Its client chose it: what is not plain is shown, and not obeyed by the terminal.
        return f"{line} [{name if request_ids.is_plain(name) else ascii(name)}]" if name else line


def set_up(service: str, level: str = "info") -> None:
    """Send all logs to stderr; stdout belongs to the ready line."""
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(PlainFormatter())
    else:
        handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
