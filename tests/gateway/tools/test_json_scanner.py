"""The scanner ends where Python's own parser does, and breaks at the first character that no value can have."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.tools.json_scanner import MAX_DEPTH, WHITE_SPACE, JsonScanner, Scan

pytestmark = pytest.mark.property

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def scan(text: str) -> tuple[Scan, int]:
    """What the scanner says last, and of how many characters it has heard by then."""
    scanner = JsonScanner()
    for heard, character in enumerate(text, 1):
        said = scanner.push(character)
        if said is not Scan.MORE:
            return said, heard
    return Scan.MORE, len(text)


def parses(text: str) -> bool:
    """Whether a text is JSON: RFC 8259, so without the constants that Python adds."""
    try:
        json.loads(text, parse_constant=lambda name: 1 / 0, parse_int=str)
    except (ValueError, ZeroDivisionError):
        return False
    return True


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_a_value_ends_with_its_last_character(value: Any, indent: int | None, ascii_: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_)
    said, heard = scan(f" \n{text};")
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert (said, heard) == (Scan.BEYOND, len(text) + 3)
    else:
        assert (said, heard) == (Scan.LAST, len(text) + 2)


@settings(max_examples=400)
@given(st.text(alphabet='{}[]":,\\u0123eE+-.truefalsn \n\x00é', max_size=14))
@example('{"a": [1, {"b": null}]}')
@example('"\\ud83d\\n\\x"')
@example("-")
@example("01")
@example("1.e5")
@example('{"a" 1}')
@example("[1,]")
@example('{,"a":1}')
@example("NaN")
@example('"\x1f"')
def test_it_agrees_with_a_parser_on_any_text(text: str) -> None:
    said, heard = scan(f"{text} ")
    end = heard - 1 if said is Scan.BEYOND else heard
    if said in (Scan.LAST, Scan.BEYOND):
        assert parses(text[:end])
        assert not text[end:].strip(WHITE_SPACE) or not parses(text)
    else:
        assert not parses(text)
    if said is Scan.BROKEN:
        # Nothing that begins like this is JSON.
        begun = f"{text} "[:heard]
        assert not any(parses(begun + rest) for rest in ("", '"', "}", "]", "0", '":0}', '"}', "e", "rue"))


def test_nesting_is_bounded() -> None:
    assert scan("[" * MAX_DEPTH + "]" * MAX_DEPTH) == (Scan.LAST, 2 * MAX_DEPTH)
    assert scan("[" * (MAX_DEPTH + 1)) == (Scan.BROKEN, MAX_DEPTH + 1)
