"""Reads one JSON value (RFC 8259) character by character and says where it ends, or at which character it is none."""

import enum
import re

WHITE_SPACE = " \t\n\r"

# Clients parse what passes here, most of them recursively. The bound is that of a request's own body.
MAX_DEPTH = 200

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_CLOSED_BY = {"{": "}", "[": "]"}


class Scan(enum.Enum):
    """What a character was to a value."""

    MORE = enum.auto()
    """Part of it, or white space before it; the value goes on."""

    LAST = enum.auto()
    """Its last one."""

    BEYOND = enum.auto()
    """Behind it: only a number ends without a sign of its own."""

    BROKEN = enum.auto()
    """No value begins like this."""


class JsonScanner:
    """A pushdown automaton for one value; after LAST, BEYOND or BROKEN it is used up."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._state = self._value
        self._number = ""
        self._rest = ""
        self._is_key = False
        self._digits = 0

    def push(self, character: str) -> Scan:
        """Take the next character."""
        return self._state(character)

    def _value(self, character: str) -> Scan:
        if character in WHITE_SPACE:
            return Scan.MORE
        if character in _CLOSED_BY:
            self._open.append(character)
            self._state = self._first_key if character == "{" else self._first_item
            return Scan.MORE if len(self._open) <= MAX_DEPTH else Scan.BROKEN
        if character == '"':
            return self._begin_string(is_key=False)
        if character in _LITERALS:
            self._rest, self._state = _LITERALS[character], self._literal
        elif character in "-0123456789":
            self._number, self._state = character, self._in_number
        else:
            return Scan.BROKEN
        return Scan.MORE

    def _first_item(self, character: str) -> Scan:
        return self._close() if character == "]" else self._value_of_array(character)

    def _value_of_array(self, character: str) -> Scan:
        # White space leaves the choice between an item and the end of an empty array open.
        return Scan.MORE if character in WHITE_SPACE else self._value(character)

    def _first_key(self, character: str) -> Scan:
        return self._close() if character == "}" else self._key(character)

    def _key(self, character: str) -> Scan:
        if character in WHITE_SPACE:
            return Scan.MORE
        return self._begin_string(is_key=True) if character == '"' else Scan.BROKEN

    def _colon(self, character: str) -> Scan:
        if character == ":":
            self._state = self._value
        elif character not in WHITE_SPACE:
            return Scan.BROKEN
        return Scan.MORE

    def _next(self, character: str) -> Scan:
        """Behind a member or an item."""
        if character in WHITE_SPACE:
            return Scan.MORE
        if character == _CLOSED_BY[self._open[-1]]:
            return self._close()
        if character != ",":
            return Scan.BROKEN
        self._state = self._key if self._open[-1] == "{" else self._value
        return Scan.MORE

    def _begin_string(self, *, is_key: bool) -> Scan:
        self._is_key, self._state = is_key, self._string
        return Scan.MORE

    def _string(self, character: str) -> Scan:
        if character == '"':
            if not self._is_key:
                return self._ended()
            self._state = self._colon
        elif character == "\\":
            self._state = self._escape
        elif character < " ":
            return Scan.BROKEN
        return Scan.MORE

    def _escape(self, character: str) -> Scan:
        if character == "u":
            self._digits, self._state = 4, self._hexadecimal
        elif character in '"\\/bfnrt':
            self._state = self._string
        else:
            return Scan.BROKEN
        return Scan.MORE

    def _hexadecimal(self, character: str) -> Scan:
        if character not in "0123456789abcdefABCDEF":
            return Scan.BROKEN
        self._digits -= 1
        if self._digits == 0:
            self._state = self._string
        return Scan.MORE

    def _literal(self, character: str) -> Scan:
        if character != self._rest[0]:
            return Scan.BROKEN
        self._rest = self._rest[1:]
        return Scan.MORE if self._rest else self._ended()

    def _in_number(self, character: str) -> Scan:
        if character in "0123456789+-.eE":
            self._number += character
            return Scan.MORE
        if not _NUMBER.fullmatch(self._number):
            return Scan.BROKEN
        if not self._open:
            return Scan.BEYOND
        self._state = self._next
        return self._next(character)

    def _close(self) -> Scan:
        self._open.pop()
        return self._ended()

    def _ended(self) -> Scan:
        if not self._open:
            return Scan.LAST
        self._state = self._next
        return Scan.MORE
