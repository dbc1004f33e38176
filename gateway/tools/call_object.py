"""A call written as a JSON object, ``{"name": "f", "arguments": {...}}``, read character by character."""

import json
from collections.abc import Container

from gateway.tools.json_scanner import WHITE_SPACE, JsonScanner, Scan

NAME = "name"

# Llama's models say the second.
ARGUMENTS = ("arguments", "parameters")

NO_ARGUMENTS = "{}"


class CallObject:
    """Reads one call. Its members may come in any order; others than the two are read over.

    Args:
        names: of the functions that may be called: an object with another name is no call.

    Attributes:
        name: the function, once it is known.
    """

    def __init__(self, names: Container[str]) -> None:
        self.name: str | None = None
        self._names = names
        self._state = self._open
        self._scanner = JsonScanner()
        self._text: list[str] = []
        self._member = ""
        self._seen: set[str] = set()
        self._streams = False
        self._arguments: list[str] = []

    def push(self, character: str) -> Scan:
        """Take the next character; never BEYOND."""
        return self._state(character)

    def take(self) -> str:
        """The arguments that became known since the last time, as they are written; empty before the name is known."""
        if self.name is None:
            return ""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _open(self, character: str) -> Scan:
        if character == "{":
            self._state = self._key
        elif character not in WHITE_SPACE:
            return Scan.BROKEN
        return Scan.MORE

    def _key(self, character: str) -> Scan:
        if character in WHITE_SPACE and not self._text:
            return Scan.MORE
        if character != '"' and not self._text:
            return Scan.BROKEN
        self._text.append(character)
        scan = self._scanner.push(character)
        if scan is not Scan.LAST:
            return scan
        self._member = json.loads("".join(self._text))
        if self._member in ARGUMENTS:
            self._member = ARGUMENTS[0]
        if self._member in self._seen:
            return Scan.BROKEN
        self._seen.add(self._member)
        self._state = self._colon
        return Scan.MORE

    def _colon(self, character: str) -> Scan:
        if character == ":":
            self._state, self._scanner = self._value, JsonScanner()
            self._text.clear()
            self._streams = False
        elif character not in WHITE_SPACE:
            return Scan.BROKEN
        return Scan.MORE

    def _value(self, character: str) -> Scan:
        if character in WHITE_SPACE and not self._text:
            return Scan.MORE
        if not self._text:
            self._streams = self._member == ARGUMENTS[0] and character == "{"
        scan = self._scanner.push(character)
        if scan is Scan.BEYOND:
            return self._next(character) if self._take_value() else Scan.BROKEN
        if scan is Scan.BROKEN:
            return scan
        self._text.append(character)
        if self._streams:
            self._arguments.append(character)
        if scan is Scan.LAST:
            return Scan.MORE if self._take_value() else Scan.BROKEN
        return Scan.MORE

    def _take_value(self) -> bool:
        """Take a member's value; whether it may be one."""
        self._state = self._next
        if self._streams:
            return True
        text = "".join(self._text)
        if self._member == NAME:
            name = json.loads(text) if text[0] == '"' else None
            if name not in self._names:
                return False
            self.name = name
        elif self._member == ARGUMENTS[0]:
            return self._take_wrapped(text)
        return True

    def _take_wrapped(self, text: str) -> bool:
        """Arguments that are written as a text of JSON, or as null."""
        inner = NO_ARGUMENTS
        if text != "null":
            if text[0] != '"':
                return False
            inner = json.loads(text)
            try:
                if not isinstance(json.loads(inner), dict):
                    return False
            except (ValueError, RecursionError):
                return False
        self._arguments.append(inner)
        return True

    def _next(self, character: str) -> Scan:
        if character in WHITE_SPACE:
            return Scan.MORE
        if character == ",":
            self._state, self._scanner = self._key, JsonScanner()
            self._text.clear()
            return Scan.MORE
        if character != "}" or self.name is None:
            return Scan.BROKEN
        if ARGUMENTS[0] not in self._seen:
            self._arguments.append(NO_ARGUMENTS)
        return Scan.LAST


class NamedArguments:
    """A call whose name stands elsewhere: only the object of its arguments is read.

    Attributes:
        name: the function.
    """

    def __init__(self, name: str) -> None:
        self.name: str | None = name
        self._scanner = JsonScanner()
        self._arguments: list[str] = []
        self._begun = False

    def push(self, character: str) -> Scan:
        """Take the next character; never BEYOND."""
        if not self._begun and character != "{":
            return Scan.BROKEN
        self._begun = True
        scan = self._scanner.push(character)
        if scan is not Scan.BROKEN:
            self._arguments.append(character)
        return scan

    def take(self) -> str:
        """The arguments that became known since the last time, as they are written."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text
