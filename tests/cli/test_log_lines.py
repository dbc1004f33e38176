"""Log lines of children as ``octavo serve`` prints them."""

import io
import json
import logging

import pytest
from rich.console import Console

from cli.log_lines import LogLine, LogPrinter
from service.logs import JsonFormatter

pytestmark = pytest.mark.unit


def as_logged(level: int, message: str, **extra: object) -> str:
    """The line as a service writes it."""
    record = logging.LogRecord("model_worker.app", level, "app.py", 1, message, None, None)
    vars(record).update(extra)
    return JsonFormatter("model_worker").format(record)


def test_a_log_line_shows_level_message_and_fields() -> None:
    line = as_logged(logging.WARNING, "late", step=7, request_id="r1")
    clock = json.loads(line)["time"][11:19]
    assert (
        LogLine.parse(line).render("model_worker").plain == f"model_worker | {clock} WARNING late step=7 request_id=r1"
    )


@pytest.mark.parametrize("line", ["plain text", "{broken", '["list"]', '{"no": "message"}'])
def test_any_other_line_is_printed_as_it_is(line: str) -> None:
    assert LogLine.parse(line).render("gateway").plain == f"gateway      | {line}"


def test_an_exception_keeps_its_lines() -> None:
    line = json.dumps({"message": "failed", "exception": "Traceback\n  here"})
    assert LogLine.parse(line).render("gateway").plain.endswith("failed\nTraceback\n  here")


def test_markup_in_a_line_is_no_markup() -> None:
    output = io.StringIO()
    LogPrinter(Console(file=output, width=20))("gateway", "[bold]not bold[/bold] [/x] and longer than the console")
    assert output.getvalue() == "gateway      | [bold]not bold[/bold] [/x] and longer than the console\n"


def test_progress_is_kept_and_not_printed_as_a_field() -> None:
    output = io.StringIO()
    printer = LogPrinter(Console(file=output))
    printer("model_worker", as_logged(logging.INFO, "loading weights", progress=0.25))
    assert printer.progress["model_worker"] == 0.25
    assert "progress" not in output.getvalue()
