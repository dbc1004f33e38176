"""What others wrote is shown on a terminal, never obeyed by it."""

import io
import json

import pytest
from rich.console import Console

from cli.failures import CliError
from cli.foreign import LAYOUT, printable
from cli.log_lines import LogLine
from cli.main import main

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("a b-1/é\u3000日本😀", "a b-1/é\u3000日本😀"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("two\r\nlines\t", r"two\r\nlines\t"),
        ("\u202egpj.exe\u2028", r"\u202egpj.exe\u2028"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_layout_of_a_text_may_be_kept() -> None:
    assert printable("a\n\tb\x1bc\r", keep=LAYOUT) == "a\n\tb\\x1bc\\r"


def test_an_error_is_printed_without_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise CliError("the manager says \x1b]0;owned\x07")

    monkeypatch.setattr("cli.main._run", fail)
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err == "octavo: the manager says \\x1b]0;owned\\x07\n"


def test_a_childs_log_line_is_printed_without_escape_sequences() -> None:
    entry = {"message": "model \x1b[2J", "tenant": "t\x9b\n", "exception": "Error\n  at \x1b[1m"}
    output = io.StringIO()
    Console(file=output, width=160).print(LogLine.parse(json.dumps(entry)).render("gateway"))
    assert "\x1b" not in output.getvalue()
    assert output.getvalue().splitlines()[0].endswith(r"model \x1b[2J tenant=t\x9b\n")
